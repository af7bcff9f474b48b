"""JSON and YAML of any depth and size are read, or refused as what they are not."""

import json
from contextlib import suppress

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import load_yaml_mapping, parse_json, parse_yaml
from jaxdist.launch.run_folder.folder import RunFolder, read_json_object
from jaxdist.launch.run_folder.lockfile import read_config_lock

DEEP = {
    "arrays": "[" * 100_000,
    "whole arrays": "[" * 50_000 + "]" * 50_000,
    "objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "a number": '{"a": ' + "9" * 10_000 + "}",
    "no object": "[1, 2]",
    "cut off": '{"values": {"a',
    "other values": '{"values": [], "experiment": 1}',
}
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
YAML = {
    "deep": "a: " + "[" * 2_000 + "]" * 2_000,
    "bomb": BOMB,
    "endless": "a: &a [*a]",
    "large": "a: " + "x" * 10_000_001,
    "key": "[1, 2]: 3",
    "date": "a: 2020-13-45",
    "tag": "a: !!python/object/apply:os.getcwd []",
}


@pytest.mark.parametrize("name", DEEP)
def test_a_lock_file_of_a_stranger_is_refused(tmp_path, name):
    folder = RunFolder(tmp_path)
    folder.config_lock.write_text(DEEP[name])
    with pytest.raises(BadInput, match=r"is damaged|cannot be used") as refused:
        read_config_lock(folder)
    assert refused.value.rule
    assert refused.value.remedy
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("name", ["arrays", "whole arrays", "objects", "a number"])
def test_deep_json_is_no_json(tmp_path, name):
    with pytest.raises(json.JSONDecodeError):
        parse_json(DEEP[name])
    path = tmp_path / "summary.json"
    path.write_text(DEEP[name])
    assert read_json_object(path) is None


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_cannot_be_is_refused(tmp_path, name):
    path = tmp_path / "cluster.yaml"
    path.write_text(YAML[name])
    words = dict(kind="a cluster", contents="levels", option="-c", doc_page="docs")
    with pytest.raises(BadInput, match="cannot be read") as refused:
        load_yaml_mapping(path, **words)
    assert len(str(refused.value)) < 1000


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='[]{}:,"a1-&*! \\n', max_size=40), st.integers(0, 3000))
def test_any_text_is_read_or_refused(text, depth):
    for words in (text, "[" * depth + text + "]" * depth):
        with suppress(json.JSONDecodeError):
            parse_json(words)
    with suppress(yaml.YAMLError):
        parse_yaml("[" * (depth // 10) + text)


@settings(max_examples=30)
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
        lambda x: st.one_of(st.lists(x), st.dictionaries(st.text(), x)),
    )
)
def test_what_was_written_is_read(tree):
    assert parse_json(json.dumps(tree)) == tree
