"""Where a process stands, as torchrun, Slurm and Kubernetes tell it; and which of several processes failed."""

import pytest
import torch

from gdod import InputError
from gdod.ranks import Ranks
from gdod.ranks.processes import RankPlace, check_nproc, first_host, joined, own_device, surroundings
from gdod.training.launch import LOST, described, root_cause

MASTER = {"MASTER_ADDR": "here", "MASTER_PORT": "2345"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x", **MASTER}
PYTORCHJOB = {"RANK": "3", "WORLD_SIZE": "8", **MASTER}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODELIST": "node[07-08]",
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "2",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (TORCHRUN, (3, 8, 1, "env://")),
        (PYTORCHJOB, (3, 8, 0, "env://")),
        ({**PYTORCHJOB, "RANK": "0", "WORLD_SIZE": "1"}, None),
        (SRUN, (5, 8, 1, "tcp://node07:23979")),
        ({**SRUN, **MASTER}, (5, 8, 1, "tcp://here:2345")),
        ({**SRUN, "SLURM_STEP_NODELIST": "node08"}, (5, 8, 1, "tcp://node08:23979")),
        ({**SRUN, **TORCHRUN}, (3, 8, 1, "env://")),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),
        # A batch script outside of srun: there is only one process.
        ({name: value for name, value in SRUN.items() if "STEP" not in name} | {"SLURM_PROCID": "0"}, None),
    ],
)
def test_the_environment_tells_who_else_there_is(
    environment: dict[str, str], expected: tuple[int, int, int, str] | None
) -> None:
    place = surroundings(environment)
    assert expected == (None if place is None else (place.rank, place.size, place.local, place.address))


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "no MASTER_ADDR; set it to where rank 0 runs"),
        ({"RANK": "2", "WORLD_SIZE": "2", **MASTER}, "RANK=2 and WORLD_SIZE=2; expected a rank from 0 to 1"),
        ({"RANK": "one", "WORLD_SIZE": "2", **MASTER}, "RANK='one'; expected a whole number"),
        ({**SRUN, "SLURM_NODELIST": ""}, "set MASTER_ADDR"),
        ({name: value for name, value in SRUN.items() if name != "SLURM_LOCALID"}, "SLURM_LOCALID=None"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        surroundings(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[007-012,20],cpu3", "gpu007"),
        ("gpu[3,5]", "gpu3"),
        ("rack[1-2]-n[04-09].site", "rack1-n04.site"),
        ("", ""),
    ],
)
def test_the_first_machine_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_another_number_of_processes_than_were_started_is_refused() -> None:
    place = surroundings(TORCHRUN)
    for nproc in (None, 8):
        check_nproc(nproc, place)
    check_nproc(4, None)
    with pytest.raises(InputError, match="--nproc 4, but this is rank 3 of 8 processes that torchrun started"):
        check_nproc(4, place)


def test_alone_everything_is_a_plain_call() -> None:
    with joined(None) as ranks:
        assert ranks == Ranks()
        assert ranks.first(lambda: 1) + ranks.agree(lambda: 2) + ranks.in_turns(lambda: 3) == 6
        assert ranks.most([4, 5]) == [4, 5]
        assert ranks.tell("so") == ["so"]
        assert torch.equal(ranks.gather(torch.ones(2, 3)), torch.ones(2, 3))
        with pytest.raises(ValueError, match="no"):
            ranks.agree(lambda: int("no"))


def test_a_time_to_wait_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("soon", "0", "inf", "nan"):
        monkeypatch.setenv("GDOD_TIMEOUT", wrong)
        with pytest.raises(InputError, match="expected a number of seconds"), joined(RankPlace(0, 2, 0, "env://", "")):
            pass


def test_one_gpu_is_not_for_all() -> None:
    with pytest.raises(InputError, match="one GPU for 2 ranks"):
        own_device(torch.device("cuda:1"), Ranks(0, 2))
    assert own_device(torch.device("cpu"), Ranks(0, 2)) == torch.device("cpu")


@pytest.mark.parametrize(
    ("codes", "root"),
    [
        ({1: -9}, (1, -9)),
        ({0: LOST, 1: -9}, (1, -9)),
        ({0: -15, 2: LOST, 1: 1}, (1, 1)),
        ({0: LOST, 1: -15}, (0, LOST)),
        ({1: 143, 0: -15}, (1, 143)),
    ],
)
def test_the_rank_that_others_ended_for_is_found(codes: dict[int, int], root: tuple[int, int]) -> None:
    assert root_cause(codes) == root


def test_a_failure_is_told_in_words() -> None:
    assert described(1, 4, -9) == "rank 1 of 4 was killed by signal 9 (SIGKILL), and the others were ended"
    assert "failed (exit code 1); its error stands above" in described(0, 2, 1)
