"""The password of the local Prefect server: a file readable by the user only, unchanged between starts."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from slackwater.flows.engine.serving import PASSWORD_FILE, SERVER_PASSWORD, running_server, server_password
from slackwater.warehouse.errors import SettingsError


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch):
    monkeypatch.delenv(SERVER_PASSWORD, raising=False)


def test_it_is_made_once_and_the_user_alone_reads_it(tmp_path):
    before = os.umask(0)
    try:
        password = server_password(tmp_path)
    finally:
        os.umask(before)
    file = tmp_path / PASSWORD_FILE
    assert password.startswith("slackwater:")
    assert len(password) > 50
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() == password == server_password(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [PASSWORD_FILE]


def test_two_homes_have_two(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert server_password(tmp_path / "a") != server_password(tmp_path / "b")


def test_servers_that_start_at_the_same_time_have_one(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(server_password, [tmp_path] * 64))) == 1


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_one_that_others_could_read_is_replaced(tmp_path, mode):
    file = tmp_path / PASSWORD_FILE
    file.write_text("slackwater:known")
    file.chmod(mode)
    assert server_password(tmp_path) != "slackwater:known"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_empty_file_and_a_link_are_replaced(tmp_path):
    file, elsewhere = tmp_path / PASSWORD_FILE, tmp_path / "elsewhere"
    file.touch(mode=0o600)
    assert server_password(tmp_path)
    file.unlink()
    elsewhere.write_text("slackwater:known")
    elsewhere.chmod(0o600)
    file.symlink_to(elsewhere)
    assert server_password(tmp_path) != "slackwater:known"
    assert not file.is_symlink()
    assert elsewhere.read_text() == "slackwater:known"


def test_the_user_s_own_goes_first(tmp_path, monkeypatch):
    monkeypatch.setenv(SERVER_PASSWORD, "team:secret")
    assert server_password(tmp_path) == "team:secret"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["home", "home/below"])
def test_a_home_that_cannot_be_made_is_named_with_the_remedy(tmp_path, monkeypatch, below):
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / below))
    with pytest.raises(SettingsError, match="PREFECT_HOME"), running_server(tmp_path / "server.log"):
        pass
