"""Rolling restarts after changes of the resource: one pod at a time, without errors at clients."""

import time

import kube
import pytest
from rolls import ROLLED_S, roll

from kit.cluster_clients import Load


@pytest.mark.ci_part
def test_other_resources_are_taken_up_by_one_pod_after_the_other(three: kube.Cluster) -> None:
    roll(three, resources={"requests": {"cpu": "20m", "memory": "96Mi"}})
    for pod in three.pods():
        assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "20m", "memory": "96Mi"}


def test_another_image_is_taken_up_by_one_pod_after_the_other(three: kube.Cluster) -> None:
    image = kube.tag_on_workers("node", "e2e-next")
    roll(three, image=image)
    for pod in three.pods():
        assert pod["spec"]["containers"][0]["image"] == image


def test_an_image_that_is_not_there_stops_the_roll_at_its_first_pod(three: kube.Cluster) -> None:
    load = Load(three)
    lives, spec = three.lives(), dict(three.spec)
    began = time.monotonic()
    three.apply(image="headrace/node:none-such", imagePullPolicy="Never")
    kube.until("one pod has gone", lambda: three.lives() != lives, timeout_s=ROLLED_S)

    def told() -> bool:
        status, reason, message = three.condition("Current")
        assert (status, reason) == ("False", "PodsCannotRun"), (status, reason, message)
        return "none-such" in message

    kube.until("the condition says what it waits for", told)
    load.write_on_for(20.0)
    now = three.lives()
    assert sum(now.get(pod) == life for pod, life in lives.items()) == 2
    three.spec = spec
    three.apply()
    three.await_ready()
    seconds = time.monotonic() - began
    load.finish()
    kube.report("4 an image that is not there, and back", seconds)
