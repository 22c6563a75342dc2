"""Two runs start the same group: they take turns on the machine, and the second measures what the first left."""

import contextlib

import pytest
from tests.lab.test_bench import GROUP, Repository

from moapipe.lab import bench as benching
from moapipe.lab.record import Canary


@pytest.mark.parametrize(("finished", "says"), [(3, "the record of these builds stands; nothing to measure"), (1, "goes on after 1 finished launch")])
def test_what_another_job_measured_while_this_one_waited_is_not_measured_again(tmp_path, monkeypatch, finished, says):
    repository = Repository(tmp_path)
    repository.build("good")
    monkeypatch.setattr(benching.canary, "send", lambda *_: (Canary(), 0.0))
    e, said = repository.experiment(variants=["good"], box=0.15), []
    monkeypatch.setattr("moapipe.lab.sampling.judge", lambda diagnosis: "valid")

    @contextlib.contextmanager
    def waited(*_):
        monkeypatch.setattr(benching, "alone", lambda *_: contextlib.nullcontext())
        with contextlib.suppress(KeyboardInterrupt):
            benching.bench(e, GROUP, lambda line: (_ for _ in ()).throw(KeyboardInterrupt) if f"launch {finished + 1} of 3" in line else None)
        yield

    monkeypatch.setattr(benching, "alone", waited)
    assert benching.bench(e, GROUP, said.append).sizes["launch"] == 3
    assert says in said[0] and sum(" of 3" in line for line in said) == 3 - finished
