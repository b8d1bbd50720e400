"""What a process may use of its machine, read from files as the kernel writes them, and what defaults follow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from storage.store.store import Store
from tasks import session
from tasks.machine import free_memory, num_cores, num_gpus
from tasks.runtime import device, environment
from tasks.runtime.device import num_model_processes
from tasks.session import Execution

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "350000 100000\n"}, 3),
        (  # the limit of a group holds for the groups in it
            {
                "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            2,
        ),
        # In a container the group is named as the host sees it, and its files are at the root.
        ({"proc/self/cgroup": "0::/docker/1f\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "600000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            6,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
)  # fmt: skip
def test_cores_are_limited_by_the_quota_of_control_groups(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert num_cores(written(tmp_path, files)) == expected


def test_memory_is_what_is_free_or_what_a_control_group_leaves(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    root = written(tmp_path, {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {6 << 20} kB\n"})
    assert free_memory(root) == 6 * GIB
    version_2 = {"memory.max": str(4 * GIB), "memory.current": str(GIB)}
    written(
        root, {"proc/self/cgroup": "0::/a\n", **{f"sys/fs/cgroup/a/{name}": text for name, text in version_2.items()}}
    )
    assert free_memory(root) == 3 * GIB
    written(root, {"sys/fs/cgroup/a/memory.stat": f"anon {GIB // 2}\ninactive_file {GIB // 2}\n"})
    assert free_memory(root) == 3.5 * GIB  # the kernel frees cached pages of files where memory is needed
    version_1 = {"memory.limit_in_bytes": str(2**63 - 4096), "memory.usage_in_bytes": "0"}
    written(root, {"proc/self/cgroup": "4:memory:/a\n"})
    written(root, {f"sys/fs/cgroup/memory/a/{name}": text for name, text in version_1.items()})
    assert free_memory(root) == 6 * GIB
    version_1 = {"memory.limit_in_bytes": str(2 * GIB), "memory.usage_in_bytes": str(2 * GIB)}
    version_1["memory.stat"] = f"inactive_file 0\ntotal_inactive_file {GIB}\n"
    written(root, {f"sys/fs/cgroup/memory/a/{name}": text for name, text in version_1.items()})
    assert free_memory(root) == GIB


@pytest.mark.parametrize(("device", "expected"), [("nvidia0", 2), ("dxg", 2), ("kfd", 2), ("nvidiactl", 0)])
def test_gpus_are_counted_where_a_driver_has_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, expected: int
) -> None:
    """In WSL 2 the driver's device is /dev/dxg, and with ROCm /dev/kfd."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    assert num_gpus(written(tmp_path, {f"dev/{device}": ""})) == expected


def test_this_machine_has_a_core_and_memory() -> None:
    assert num_cores() >= 1
    assert (free_memory() or GIB) > 0
    assert num_gpus() >= 0


@pytest.mark.parametrize(("memory", "workers"), [(None, 8), (64 * GIB, 8), (3 * GIB, 3), (GIB // 2, 1)])
def test_there_is_a_worker_for_each_core_that_has_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int | None, workers: int
) -> None:
    monkeypatch.setattr(session, "num_cores", lambda: 8)
    monkeypatch.setattr(session, "free_memory", lambda: memory)

    assert Execution().workers == workers
    assert Execution(workers=5).workers == 5
    assert (Execution().threads, Execution().processes) == (2, 1)  # these would change last digits


@pytest.mark.parametrize(
    ("wanted", "gpus", "expected"),
    [
        (Execution(workers=8), 0, 4),
        (Execution(workers=8, threads=1), 0, 8),
        (Execution(workers=1), 0, 1),
        (Execution(workers=8), 3, 3),
        (Execution(workers=8, device="cpu"), 3, 4),
        (Execution(workers=8, device="cuda:1"), 3, 1),
        (Execution(workers=8, processes=2), 3, 2),
    ],
)
def test_shards_of_a_model_use_all_gpus_or_else_all_cores(
    monkeypatch: pytest.MonkeyPatch, wanted: Execution, gpus: int, expected: int
) -> None:
    monkeypatch.setattr(device, "num_gpus", lambda: gpus)

    assert num_model_processes(wanted) == expected


@pytest.mark.parametrize(
    ("wanted", "gpus", "expected"),
    [
        (Execution(threads=3), 0, 3),
        (Execution(threads=2), 1, 16),
        (Execution(threads=2), 4, 4),
        (Execution(threads=6), 4, 6),
        (Execution(threads=2, device="cpu"), 4, 2),
    ],
)
def test_the_process_of_a_gpu_scores_on_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: Execution, gpus: int, expected: int
) -> None:
    monkeypatch.setattr(device, "num_gpus", lambda: gpus)
    monkeypatch.setattr(device, "num_cores", lambda: 16)

    with session.session(session.Session(Store(tmp_path), wanted)):
        assert device.num_host_threads() == expected


@pytest.mark.parametrize("wanted", ["gpu", "cuda:", "cuda:x", "CPU", "mps", ""])
def test_a_device_that_is_none_is_refused_at_once(wanted: str) -> None:
    with pytest.raises(ValidationError, match="expected auto, cpu, cuda or cuda:N"):
        Execution(device=wanted)


@pytest.mark.parametrize(("wanted", "expected"), [("auto", "GPU 0"), ("cuda", "GPU 0"), ("cuda:1", "GPU 1")])
def test_a_manifest_names_the_gpu_of_the_setting(monkeypatch: pytest.MonkeyPatch, wanted: str, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "get_device_name", lambda device=None: f"GPU {torch.device(device or 'cuda').index or 0}"
    )

    assert environment.describe_build(Execution(device=wanted))["device"] == expected


def test_a_run_states_what_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(environment, "num_cores", lambda: 8)
    monkeypatch.setattr(environment, "free_memory", lambda: 3 * GIB)
    monkeypatch.setattr(environment, "num_gpus", lambda: 4)

    line = environment.describe_execution(Execution(workers=3))
    assert line.startswith("execution: 3 workers, 2 threads (8 cores, 3.0 GiB of free memory, 4 GPUs)")
    assert "execution.processes=4 uses all" in line
    assert ";" not in environment.describe_execution(Execution(processes=4))


@pytest.mark.parametrize(("policy", "expected"), [(None, "passive"), ("active", "active")])
def test_threads_wait_passively_unless_the_user_sets_it(policy: str | None, expected: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env |= {} if policy is None else {"OMP_WAIT_POLICY": policy}
    code = "import os, sys, tasks.session; assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"

    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout

    assert shown.strip() == expected
