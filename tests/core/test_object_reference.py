"""A name leads back to its function, and says what is wrong where it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.object_reference import (
    call_user_function,
    check_trusted_references,
    is_object_reference,
    load_module,
    object_reference,
    resolve_object,
)


@pytest.fixture
def file(tmp_path):
    def write(text, name="my.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refused(name):
    with pytest.raises(BadInput) as caught:
        resolve_object(name)
    return caught.value


def test_names_are_told_from_data_sets_with_a_version():
    assert all(map(is_object_reference, ("my.py:Net", "/a/b.py:f", "package.module:f")))
    assert not any(
        map(is_object_reference, ("resnet50", "imagenet2012:5.1.0", "a:", ":f", ""))
    )


def test_a_name_leads_back(file):
    path = file("def f():\n    return 7\n\nclass Net:\n    pass\n")
    for name in ("f", "Net"):
        thing = resolve_object(f"{path}:{name}")
        assert object_reference(thing) == f"{path}:{name}"
        assert resolve_object(object_reference(thing)) is thing
    assert resolve_object(object_reference(did_you_mean)) is did_you_mean


def test_a_file_is_loaded_once_until_it_changes(file, tmp_path):
    path = file("x = []\n")
    assert load_module(path).x is load_module(path).x
    old = load_module(path)
    path.write_text("x = [1]\n")
    # A file written twice within a tick of the clock has the same time.
    os.utime(path, ns=(1, 1))
    assert (load_module(path).x, old.x) == ([1], [])


def test_a_file_hides_no_module(file):
    load_module(file("x = 1\n", "json.py"))
    import json

    assert json.loads("[1]") == [1]


def test_a_file_imports_what_lies_beside_it(file, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    beside = file("def shapes():\n    return 1\n", "lies_beside.py")
    path = file("from lies_beside import shapes\n")
    monkeypatch.delitem(sys.modules, "lies_beside", raising=False)
    shapes = resolve_object(f"{path}:shapes")
    # Another process finds it by its path, without the file that imported it.
    assert object_reference(shapes) == f"{beside}:shapes"
    monkeypatch.delitem(sys.modules, "lies_beside")


def test_a_program_is_not_loaded_a_second_time(file):
    path = file(
        "from jaxdist.core.object_reference import object_reference, resolve_object\n"
        "def shapes():\n    return 1\n"
        "print(resolve_object(object_reference(shapes)) is shapes)\n"
    )
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def test_functions_without_a_place_have_no_name():
    def inner():
        return None

    for thing in (inner, lambda: None):
        with pytest.raises(BadInput, match="first column of a file"):
            object_reference(thing)


def test_what_is_not_there_is_named(file, tmp_path):
    path = file("def rings():\n    return 1\n")
    assert refused(f"{path}:ring").remedy == (f"did you mean {path}:rings?",)
    assert refused(f"{path}:xyz").remedy == ("def xyz(...):",)
    assert refused(f"{tmp_path}/me.py:rings").remedy == (f"did you mean {path}?",)
    moved = refused("/nowhere/at_all.py:Net")
    assert moved.remedy == ("mv FOLDER/at_all.py /nowhere/at_all.py",)
    assert refused("no_such_package.nets:Net").what == "no module no_such_package.nets"


def test_a_file_that_fails_names_the_line_and_is_tried_again(file, monkeypatch):
    path = file("x = 1\ny = z\n")
    monkeypatch.chdir(path.parent)
    for name in (path, path.name):
        error = refused(f"{name}:f")
        assert error.values == "NameError: name 'z' is not defined"
        assert error.remedy[0].endswith("line 2")
    assert not [
        m for m in sys.modules.values() if getattr(m, "__file__", "") == str(path)
    ]


def test_a_function_that_fails_names_the_line(file):
    path = file("def f():\n    x = 1\n    return x / 0\n")
    with pytest.raises(BadInput) as caught:
        call_user_function(f"{path}:f", resolve_object(f"{path}:f"))
    assert caught.value.what == f"f() of {path} fails"
    assert caught.value.values == "ZeroDivisionError: division by zero"
    assert caught.value.remedy == (f"mend {path}, at line 3",)


HOMES = st.sampled_from(
    [
        *("jaxdist.models", "jaxdistance", "os", "my.py", "run/my.py"),
        *("x/jaxdist.py", "jaxdist.py", "jaxdist/models"),
    ]
)


@given(HOMES, HOMES, st.booleans())
def test_only_known_code_is_trusted(home, experiment, trust):
    known = home == "jaxdist.models" or home == experiment != "run/my.py"
    known &= home == "jaxdist.models" or home.endswith(".py")
    how = dict(experiment=experiment, folder=Path("run"), trust=trust, remedy="--trust")
    check_trusted_references(["digits", "imagenet2012:5.1.0"], **how)
    if known or trust:
        check_trusted_references([f"{home}:f"], **how)
        return
    with pytest.raises(BadInput, match="not known") as refused:
        check_trusted_references([f"{home}:f"], **how)
    assert f"{home}:f" in refused.value.values
