import pytest
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError

from harness.records import Stage, Status
from harness.sweep.deaths import cause_of_death

DIED = "The actor died unexpectedly. (1) the process was killed by the OOM killer (2) the OOMing node (3) SIGSEGV"


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        ("Fatal Python error: Segmentation fault\n\nStack", Status.CRASH, "SIGSEGV (segmentation fault) in stage run"),
        (
            "F0000 computation_partitioner.cc:269] Check failed: operand_maps.size() == 1\nFatal Python error: Aborted",
            Status.CRASH,
            "SIGABRT (abort) in stage run: Check failed: operand_maps.size() == 1",
        ),
        ("", Status.CRASH, "ended in stage run without a word"),
        ("terminate called after throwing std::bad_alloc", Status.OUT_OF_MEMORY, "an allocation failed"),
    ],
)
def test_a_death_is_read_from_the_last_words(words: str, status: Status, part: str) -> None:
    found, message = cause_of_death(RayActorError(error_msg=DIED), words, Stage.RUN)
    assert found is status
    assert part in message
    assert "\n" not in message


def test_rays_own_memory_limit_is_out_of_memory() -> None:
    assert cause_of_death(OutOfMemoryError("the node ran low"), "", Stage.RUN)[0] is Status.OUT_OF_MEMORY


def test_a_lost_node_is_no_fault_of_the_backend() -> None:
    error = RayActorError(error_msg="The actor died because its node has died.")
    assert cause_of_death(error, "", Stage.RUN)[0] is Status.ENVIRONMENT_ERROR


def test_what_ray_itself_fails_at_is_no_fault_of_the_backend() -> None:
    error = ObjectLostError("00" * 28, None, "")
    assert cause_of_death(error, "", Stage.RUN)[0] is Status.ENVIRONMENT_ERROR
