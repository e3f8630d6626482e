"""The data folder: private, locked, and never somebody else's."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tenora_platform.up.errors import DataFolderError
from tenora_platform.up.folder import (
    LONGEST_SOCKET_NAME,
    MAX_SOCKET_PATH_BYTES,
    DataFolder,
    lock_data_folder,
    open_data_folder,
    rotate_logs,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_in_a_new_folder_is_private(folder: DataFolder) -> None:
    folders = [path for path in (folder.root, *folder.root.iterdir()) if path.is_dir()]
    assert {mode(path) for path in folders} == {0o700}


def test_folder_that_was_opened_to_others_is_closed_again(folder: DataFolder) -> None:
    folder.root.chmod(0o755)
    open_data_folder(folder.root, {})
    assert mode(folder.root) == 0o700


def test_folder_with_other_files_is_left_alone(root: Path) -> None:
    root.mkdir(mode=0o755)
    (root / "holiday.jpg").touch()
    with pytest.raises(DataFolderError, match="--data"):
        open_data_folder(root, {})
    assert mode(root) == 0o755
    assert [path.name for path in root.iterdir()] == ["holiday.jpg"]


def test_sockets_of_a_long_path_move_to_a_short_private_folder(root: Path) -> None:
    long = root / ("x" * 100)
    folder = open_data_folder(long, {})
    try:
        assert len(os.fsencode(folder.run / LONGEST_SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES
        assert mode(folder.run) == 0o700
        assert folder.run == open_data_folder(long, {}).run
        assert folder.run != open_data_folder(root / ("y" * 100), {}).run
    finally:
        for path in Path("/tmp").glob(f"{folder.run.name.rsplit('-', 1)[0]}-*"):
            shutil.rmtree(path)


def test_runtime_folder_of_the_session_is_preferred(root: Path) -> None:
    runtime = root.parent / "runtime"
    runtime.mkdir()
    folder = open_data_folder(root / ("x" * 100), {"XDG_RUNTIME_DIR": str(runtime)})
    assert folder.run.parent == runtime


def test_second_user_of_a_folder_is_told_who_has_it(folder: DataFolder) -> None:
    lock = lock_data_folder(folder)
    try:
        with pytest.raises(DataFolderError, match=rf"process {os.getpid()}.*--data"):
            lock_data_folder(folder)
    finally:
        os.close(lock)
    os.close(lock_data_folder(folder))


def test_lock_waits_for_what_a_killed_owner_left_running(folder: DataFolder) -> None:
    lock = lock_data_folder(folder)
    code = "import time; time.sleep(0.5)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], pass_fds=(lock,))
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"4194305\n", 0)  # beyond the largest process id: the owner is gone
    os.close(lock)
    os.close(lock_data_folder(folder))
    assert child.poll() is not None or child.wait(timeout=1) == 0


def test_last_log_is_kept_beside_the_new_one(folder: DataFolder) -> None:
    (folder.logs / "api.log").write_text("before")
    rotate_logs(folder)
    assert (folder.logs / "api.log.1").read_text() == "before"
    assert not (folder.logs / "api.log").exists()
