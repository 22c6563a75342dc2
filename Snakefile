"""From an experiment to its archive: the lists of builds and groups, the named targets; every job is one `moapipe <verb>`."""

import os
import sys
from pathlib import Path

from moapipe.lab import experiment, kernel

ROOT = Path(workflow.basedir)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # the moapipe of this environment

config.setdefault("experiment", "config/smoke.yaml")
EXPERIMENT = experiment.read(config["experiment"], ROOT)
MACHINE = EXPERIMENT.file.machine
GROUPS = experiment.groups(EXPERIMENT)
BUILDS = experiment.builds(EXPERIMENT)

AXES = "{kernel}/{form}/{variant}/{target}/{isa}/{dtype}"
GROUP = "{kernel}/{form}/{dtype}"
HERE = f"results/{EXPERIMENT.name}/{MACHINE}"
NAMES = "{wildcards.kernel} --form {wildcards.form} --variant {wildcards.variant} --target {wildcards.target} --isa {wildcards.isa} --dtype {wildcards.dtype}"
OF = f"--experiment {EXPERIMENT.where}"

DERIVATIONS = [f"results/derive/{b.path()}/manifest.json" for b in BUILDS]
PLACES = [f"{b.path()}/{MACHINE}" for b in BUILDS]
PREDICTIONS = [f"{HERE}/predict/{g.path()}/prediction.json" for g in GROUPS]
RECORDS = [f"{HERE}/bench/{g.path()}/record.nc" for g in GROUPS]


wildcard_constraints:
    **{axis: r"[\w.-]+" for axis in (*experiment.BUILD_AXES, "machine")},


rule all:
    input: f"{HERE}/archive.txt"
rule derivations:
    input: DERIVATIONS
rule builds:
    input: expand("results/build/{place}/build.json", place=PLACES)
rule validations:
    input: expand("results/validate/{place}/validation.json", place=PLACES)
rule predictions:
    input: PREDICTIONS
rule benchmarks:
    input: RECORDS
rule dataset:
    input: f"{HERE}/dataset.nc"
rule charts:
    input: f"{HERE}/charts"


for stage in ("derive", "build", "validate", "predict", "bench", "report"):
    include: f"workflow/rules/{stage}.smk"
