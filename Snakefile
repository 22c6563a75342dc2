"""From an experiment to its archive: the lists of builds and groups, the named targets; every job is one `moapipe <verb>`."""

import os
import sys
from pathlib import Path

from moapipe.lab import experiment, kernel, request, tether

ROOT = Path(workflow.basedir)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # the moapipe of this environment

if not Path.cwd().samefile(ROOT):
    sys.exit(f"moapipe: the workflow runs in its repository\n  hint: cd {ROOT} first, or add --directory {ROOT}")
config.setdefault("experiment", "config/smoke.yaml")
EXPERIMENT = experiment.read(config["experiment"], ROOT, config.get("machine", ""))  # a cluster's profile names its machine
MACHINE = EXPERIMENT.file.machine
GROUPS, BUILDS, TEXTS = (of(EXPERIMENT) for of in (experiment.groups, experiment.builds, experiment.texts))
EVERY = dict.fromkeys((*BUILDS, *TEXTS))

AXES, GROUP = "{kernel}/{form}/{variant}/{target}/{isa}/{dtype}", "{kernel}/{form}/{dtype}"
HERE = f"results/{EXPERIMENT.name}/{MACHINE}"
NAMES = "{wildcards.kernel} --form {wildcards.form} --variant {wildcards.variant} --target {wildcards.target} --isa {wildcards.isa} --dtype {wildcards.dtype}"
OF = f"--experiment {EXPERIMENT.where} --machine {MACHINE}"
GROUP_NAMES = f"{{wildcards.kernel}} --form {{wildcards.form}} --dtype {{wildcards.dtype}} {OF}"

SMALL, MEASURING = (request.resources(EXPERIMENT, stage) for stage in ("prepare", "calibrate"))

build_of = lambda w: experiment.Build(w.kernel, w.form, w.variant, w.target, w.isa, w.dtype)
group_of = lambda w: experiment.Group(w.kernel, w.form, w.dtype)
builds_of = lambda w: experiment.builds(EXPERIMENT, group_of(w))
PREDICTIONS = [f"{HERE}/predict/{g.path()}/prediction.json" for g in GROUPS]
RECORDS = [f"{HERE}/bench/{g.path()}/{node}record.nc" for g in GROUPS for node in ("", *(f"node{k}/" for k in range(1, EXPERIMENT.file.nodes)))]
TARGETS = {
    "all": f"{HERE}/archive.txt",
    "derivations": [f"results/derive/{b.path()}/manifest.json" for b in EVERY],
    "emulations": list(dict.fromkeys(f"{HERE}/emulate/{b.kernel}/{b.form}/{b.dtype}/emulation.json" for b in TEXTS)),
    "evidences": [f"{HERE}/evidence.json"] if TEXTS else [],
    "builds": [f"results/build/{b.path()}/{MACHINE}/build.json" for b in EVERY],
    "validations": [f"results/validate/{b.path()}/{MACHINE}/validation.json" for b in BUILDS],
    "predictions": PREDICTIONS,
    "benchmarks": RECORDS,
    "dataset": f"{HERE}/dataset.nc",
    "charts": f"{HERE}/charts",
}


wildcard_constraints:
    **{axis: r"[\w.-]+" for axis in (*experiment.BUILD_AXES, "machine")} | {"node": r"(node\d+/)?"},


for target, files in TARGETS.items():

    rule:
        name: target
        input: files


for part in ("lock", "cluster", *(f"rules/{stage}" for stage in ("derive", "build", "validate", "emulate", "predict", "bench", "report"))):
    include: f"workflow/{part}.smk"
