"""Options under their old names: they work, are answered, and are in no help."""

import json

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import command_names, main, make_parser
from jaxdist.launch.cli.option_aliases import OPTION_ALIASES, rename_words
from jaxdist.launch.cli.restart_options import feasible_counts_of_program
from jaxdist.launch.launchers.elastic.process_range import ProcessRange

parser_of = make_parser


def owners(option):
    return [name for name in command_names() if option in parser_of(name).option_names]


@pytest.mark.parametrize("old", OPTION_ALIASES)
def test_an_alias_stands_for_an_option_of_a_command(old):
    new = OPTION_ALIASES[old]
    for name in owners(new):
        parser = parser_of(name)
        assert old not in parser.option_names
        assert rename_words(parser, [old]) == ([new], {old: new})
        assert rename_words(parser, [f"{old}=x"])[0] == [f"{new}=x"]
    assert owners(new)


@pytest.mark.parametrize("name", command_names())
def test_help_lists_no_old_spelling(name):
    parser = parser_of(name)
    parsers = [parser, *parser.forms.values()]
    words = {word.strip(",[]") for one in parsers for word in one.format_help().split()}
    assert not words & set(OPTION_ALIASES) - parser.option_names


def test_an_option_of_that_name_is_no_alias():
    assert rename_words(parser_of("simulate"), ["--group", "8"])[1] == {}


def test_the_answer_names_the_new_spellings_once(capsys):
    words = ("data", "quality", "digits", "--q", "0.1", "--q=0.3", "data.store=none")
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    assert list(json.loads(said.out)) == ["0.1", "0.3"]
    assert said.err == (
        "renamed: data.store is now data.cache, --q is now --exchange-fraction\n"
    )


def test_new_spellings_are_not_answered(capsys):
    assert main(["config", "digits", "plan.reduce.algorithm=int8"]) == 0
    assert capsys.readouterr().err == ""


def test_one_process_answers(capsys, monkeypatch):
    monkeypatch.setenv("JAXDIST_RANK", "1")
    assert main(["config", "digits", "plan.reduce.via=int8"]) == 0
    assert capsys.readouterr().err == ""


def test_both_spellings_are_refused(capsys):
    words = ["data", "quality", "digits", "--q", "0.1", "--exchange-fraction", "0.3"]
    assert main(words) == 2
    assert "remedy   without --q" in capsys.readouterr().err
    with pytest.raises(BadInput, match="is the old name of"):
        rename_words(parser_of("train"), ["data.store=none", "data.cache=none"])


def test_words_of_a_program_are_its_own():
    words = ["local", "--back-after", "5", "-n", "1:2", "--", "train", "x", "--q"]
    found, _ = rename_words(parser_of("launch"), words)
    assert found == ["local", "--rejoin-after", *words[2:]]


def test_a_typed_old_key_wins_over_a_plan_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "plan.json"
    file.write_text('{"mesh": {"data": 2}, "reduce": {"via": "bf16"}}')
    program = "train", "digits", "--plan", str(file), "plan.reduce.via=int8"
    span = ProcessRange(min_processes=1, max_processes=2)
    # One process has nothing to compress along data, which names what was typed.
    with pytest.raises(BadInput, match="cannot run this plan") as caught:
        feasible_counts_of_program(program, span)
    assert "plan.reduce.algorithm = int8" in caught.value.values
    assert capsys.readouterr().err == ""
