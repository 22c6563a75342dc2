rule emulate:
    """The texts for GPUs of a group on the processor, in every way that is installed; a failure is written down in emulation.json."""
    input:
        lambda w: [f"results/derive/{b.path()}/manifest.json" for b in TEXTS if group_of(w) == experiment.Group(b.kernel, b.form, b.dtype)],
    output:
        f"{HERE}/emulate/{GROUP}/emulation.json",
    params:
        code=kernel.code_digest("lab/evidence.py", "lab/emulation.py", "lab/mutant.py", "lab/nvptx.py", "lab/binary.py", "lab/offload.py", "lab/opencl.py", "lab/trial.py"),
    log:
        f"results/logs/{EXPERIMENT.name}/emulate/{GROUP}.log",
    resources:
        **SMALL,
    shell:
        f"moapipe emulate {GROUP_NAMES} --keep-going 2>&1 | tee -i {{log}}"
