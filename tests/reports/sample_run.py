# ruff: noqa: E501 - a table of data
"""A made-up run of 62 rows: every status, long messages, hostile names, two backends. For tests and screenshots.

python tests/reports/sample_run.py FOLDER    writes FOLDER/index.html and FOLDER/{one,none,green}/index.html
"""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.records import Cause, Machine, Metrics, NumericClass, Row, RunInfo, Stage, Status, fault_of

STARTED = datetime(2026, 11, 3, 2, 15, tzinfo=UTC)

HOSTILE_MODEL = "python:evil.<script>window.pwned=1</script>:make"
HOSTILE_MESSAGE = (
    '</script><script>window.pwned=2</script><img src=x onerror="window.pwned=3"> \u2028 & \'"` \u202eesrever '
    + "\x1b[31mred"
)

MODELS = [
    ("timm:resnet18", "resnet", "image", 11_689_512),
    ("timm:convnext_tiny", "convnext", "image", 28_589_128),
    ("timm:efficientnet_b0", "efficientnet", "image", 5_288_548),
    ("timm:vit_tiny_patch16_224", "vit", "image", 5_717_416),
    ("timm:swin_tiny_patch4_window7_224", "swin", "image", 28_288_354),
    ("timm:mobilenetv3_small_100", "mobilenetv3", "image", 2_542_856),
    ("timm:densenet121", "densenet", "image", 7_978_856),
    ("timm:regnety_002", "regnet", "image", 3_162_996),
    ("timm:mixer_s32_224", "mlp_mixer", "image", 19_104_952),
    ("timm:maxvit_rmlp_pico_rw_256", "maxvit", "image", 7_520_000),
    ("transformers:bert", "bert", "text", 109_482_240),
    ("transformers:gpt2", "gpt2", "text", 124_439_808),
    ("transformers:llama/LlamaForCausalLM", "llama", "text", 1_235_814_400),
    ("transformers:qwen2", "qwen2", "text", 494_032_768),
    ("transformers:mixtral", "mixtral", "text", 46_702_792_704),
    ("transformers:deberta-v2", "deberta-v2", "text", 183_831_552),
    ("transformers:distilbert", "distilbert", "text", 66_362_880),
    ("transformers:opt", "opt", "text", 125_239_296),
    ("transformers:mamba2", "mamba2", "text", 128_989_632),
    ("transformers:t5", "t5", "text-to-text", 60_506_624),
    ("transformers:bart", "bart", "text-to-text", 139_420_416),
    ("transformers:led", "led", "text-to-text", 161_844_480),
    ("transformers:whisper", "whisper", "audio", 37_760_640),
    ("transformers:wav2vec2", "wav2vec2", "audio", 94_371_712),
    ("transformers:hubert", "hubert", "audio", 94_371_712),
    ("transformers:clip", "clip", "multimodal", 151_277_313),
    ("transformers:blip-2", "blip-2", "multimodal", 247_414_272),
    ("transformers:videomae", "videomae", "video", 94_213_632),
    ("transformers:patchtst", "patchtst", "time-series", 421_000),
    ("python:mypkg.models:" + "very_long_name_of_a_factory_" * 3, "custom", "custom", None),
    (HOSTILE_MODEL, 'cus"tom<b>', "custom", 12),
]

FAILING: dict[tuple[str, str], tuple[Status, Stage, str | None, str]] = {
    ("gpt2", "inductor"): (Status.DIVERGENT, Stage.JUDGE, "aten::_softmax", "4 of 4.2 M elements are out of budget, the worst by 38.2 x, in .logits"),
    ("resnet", "inductor"): (Status.DIVERGENT, Stage.JUDGE, None, "1 of 1000 elements is out of budget, by 1.07 x"),
    ("deberta-v2", "torchtpu"): (Status.UNSUPPORTED_OP, Stage.LOWER, "aten::hypot.out", "torch_tpu: no lowering is registered for aten::hypot.out"),
    ("led", "torchtpu"): (Status.UNSUPPORTED_OP, Stage.LOWER, "aten::as_strided", "torch_tpu: no lowering is registered for aten::as_strided with overlapping strides (1024, 1)"),
    ("hubert", "torchtpu"): (Status.UNSUPPORTED_OP, Stage.LOWER, "aten::hypot.out", "torch_tpu: no lowering is registered for aten::hypot.out"),
    ("wav2vec2", "torchtpu"): (Status.UNSUPPORTED_OP, Stage.LOWER, "aten::hypot.out", "torch_tpu: no lowering is registered for aten::hypot.out"),
    ("blip-2", "torchtpu"): (Status.UNSUPPORTED_OP, Stage.LOWER, "aten::hypot.out", "torch_tpu: no lowering is registered for aten::hypot.out"),
    ("videomae", "torchtpu"): (Status.UNSUPPORTED_OP, Stage.LOWER, "aten::hypot.out", "torch_tpu: no lowering is registered for aten::hypot.out"),
    ("mamba2", "torchtpu"): (Status.TIMEOUT, Stage.COMPILE, None, "no result within 300 s while it compiled"),
    ("mamba2", "inductor"): (Status.OUT_OF_MEMORY, Stage.COMPILE, None, "the worker reached its limit of 8 GiB while it compiled"),
    ("mixtral", "torchtpu"): (Status.CRASH, Stage.RUN, None, "the worker died: signal 6 (SIGABRT), computation_partitioner.cc:412 Check failed"),
    ("mixtral", "inductor"): (Status.CRASH, Stage.REFERENCE, None, "the worker died: signal 11 (SIGSEGV) in the reference"),
    ("maxvit", "torchtpu"): (Status.NON_FINITE, Stage.JUDGE, "aten::exp", "17 NaN where the reference is finite, first at [0, 0, 3]"),
    ("patchtst", "torchtpu"): (Status.CONTRACT, Stage.JUDGE, None, "output .prediction is float32 [4, 96, 7], the reference is float64 [4, 96, 7]"),
    ("patchtst", "inductor"): (Status.DYNAMIC_SHAPE, Stage.COMPILE, "aten::nonzero", "the shape of aten::nonzero depends on data"),
    ("opt", "torchtpu"): (Status.NOT_EXECUTED, Stage.RUN, None, "the outputs equal the reference bit for bit and no op ran on the device"),
    ("blip-2", "inductor"): (Status.LOAD_ERROR, Stage.BUILD, None, "ImportError: Blip2Model needs the package open_clip, which is not installed"),
    ("whisper", "inductor"): (Status.REFERENCE_SUSPECT, Stage.CONTROL, "aten::convolution", "oneDNN on and off differ by 14 x budget in .last_hidden_state"),
    ("densenet", "inductor"): (Status.ILL_CONDITIONED, Stage.JUDGE, None, "one epsilon at the input moves the output by 2.1e4 epsilon"),
    ("led", "inductor"): (Status.SKIPPED, Stage.BUILD, None, "excluded by the configuration: models.exclude transformers:led"),
    ("custom", "inductor"): (Status.RUNTIME_ERROR, Stage.RUN, None, "RuntimeError: " + "expected a tensor of a shape that nobody has ever seen before, " * 9),
    ("custom", "torchtpu"): (Status.ENVIRONMENT_ERROR, Stage.BUILD, None, "no space left on device"),
    ('cus"tom<b>', "torchtpu"): (Status.COMPILE_ERROR, Stage.COMPILE, "aten::<i>bold</i>", HOSTILE_MESSAGE),
    ('cus"tom<b>', "inductor"): (Status.LOWERING_ERROR, Stage.LOWER, None, HOSTILE_MESSAGE),
}  # fmt: skip

OPS = ["aten::convolution", "aten::native_layer_norm", "aten::addmm", "aten::mm", "aten::bmm", "aten::_softmax", "aten::gelu",
       "aten::add.Tensor", "aten::mul.Tensor", "aten::view", "aten::transpose.int", "aten::permute", "aten::clone", "aten::embedding"]  # fmt: skip

ROUTES = {"torchtpu": "lowering, run on XLA:CPU (jaxlib 0.10.2)", "inductor": "torch.compile on CPU"}


def sample_rows(backends: tuple[str, ...] = ("torchtpu", "inductor")) -> list[Row]:
    """The rows, the same on every call."""
    draw = random.Random(7)
    return [_row(draw, model, backend) for model in MODELS for backend in backends]


def _row(draw: random.Random, model: tuple[str, str, str, int | None], backend: str) -> Row:
    name, family, modality, parameters = model
    default = (Status.PASS_WITH_FALLBACK if family in ("swin", "t5") else Status.PASS, None, None, "")
    status, stage, op, message = FAILING.get((family, backend), default)
    if status is Status.PASS_WITH_FALLBACK:
        message = "within budget; aten::nonzero ran on the CPU"
    compared = status.is_pass or status in (Status.DIVERGENT, Status.NON_FINITE, Status.ILL_CONDITIONED)
    order = list(Stage)
    ran = order if stage is None else order[: order.index(stage) + 1]
    scale = draw.lognormvariate(0, 0.8)
    times = {
        one: round(
            scale * {"run": 0.4, "compile": 1.3, "lower": 0.9, "build": 0.5}.get(one, 0.3) * draw.uniform(0.6, 1.4), 4
        )
        for one in ran
    }
    if status is Status.TIMEOUT:
        times[Stage.COMPILE] = 300.0
    substituted = (
        ("aten::cumsum as a reduce_window",) if backend == "torchtpu" and family in ("gpt2", "llama", "qwen2") else ()
    )
    return Row(
        model=name, backend=backend, mode="eager" if backend == "torchtpu" else "compile", dtype="float32", profile="gaussian",
        status=status, stage=stage, at_fault=fault_of(status, stage), op=op, message=message, family=family,
        numeric_class={Status.DIVERGENT: NumericClass.DIVERGENT, Status.ILL_CONDITIONED: NumericClass.ILL_CONDITIONED}.get(
            status, NumericClass.WITHIN_BUDGET if status.is_pass else None),
        detail="" if stage is None else _detail(name, message),
        cause="c-hypot" if op == "aten::hypot.out" else None,
        source=name.partition(":")[0], modality=modality, reduced=name.startswith("transformers"), parameters=parameters, route=ROUTES[backend],
        op_counts={one: draw.randrange(1, 220) for one in draw.sample(OPS, 11)} if compared else {},
        fallback_ops=("aten::nonzero", "aten::index.Tensor") if status is Status.PASS_WITH_FALLBACK else (),
        substituted=substituted, metrics=_metrics(draw, status) if compared else Metrics(), stage_seconds=times,
        seconds=round(sum(times.values()), 3), peak_memory_mib=round(draw.uniform(400, 6000), 1), seed=0 if status.is_pass else 3,
        attempts=2 if status is Status.CRASH else 1, closed_at=STARTED + timedelta(seconds=draw.randrange(900)),
    )  # fmt: skip


def _metrics(draw: random.Random, status: Status) -> Metrics:
    worst = {Status.DIVERGENT: 38.21, Status.ILL_CONDITIONED: 410.0, Status.NON_FINITE: float("inf")}.get(
        status, draw.uniform(0.02, 0.9)
    )
    return Metrics(
        leaf=".logits", index=(0, 11, 4711), device_value=float("nan") if status is Status.NON_FINITE else -1.0342577,
        reference_value=-1.0342601, control_value=-1.03426019, worst_in_budgets=worst, elements=4_194_304,
        elements_over=0 if status.is_pass else 4, rms_ratio=draw.uniform(0.8, 1.15), reference_rms=2.1e-7, device_rms=2.3e-7,
        max_abs=draw.lognormvariate(-12, 1), max_rel=3e-6, cosine=0.99999999,
    )  # fmt: skip


def _detail(name: str, message: str) -> str:
    frames = "\n".join(
        f'  File "torch/nn/modules/module.py", line {1700 + n}, in _call_impl\n    return forward_call(*args, **kwargs)'
        for n in range(9)
    )
    return f"Traceback (most recent call last):\n{frames}\n  while {name} ran\n{message}"


def sample_info(rows: int) -> RunInfo:
    """What the run was made with."""
    return RunInfo(
        calipers="0.1.0", config={"models": {"include": ["timm:*", "transformers:*"], "limit": 31}, "backends": ["torchtpu", "inductor"], "seed": 0},
        command="calipers sweep configs/demo.yaml --out runs/demo", rows=rows,
        versions={"torch": "2.14.1+cpu", "torchvision": "0.29.1", "transformers": "5.24.0", "timm": "1.0.31", "jax": "0.10.2", "torch_tpu": "0.2.0", "ray": "2.56.0"},
        machine=Machine(processor="AMD EPYC 9R14", isa=("avx2", "avx512f", "avx512_bf16"), cpu_capability="AVX512", cores=2, memory_gib=15.6,
                        system="Linux 6.8", python="3.11.9"),
        threads=1, workers=2, environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TPU_SKIP_MDS_QUERY": "1"}, routes=ROUTES,
        started_at=STARTED, finished_at=STARTED + timedelta(seconds=611), wall_seconds=611.4,
    )  # fmt: skip


def sample_causes() -> list[Cause]:
    """The one cause that several models share."""
    models = tuple(f"transformers:{family}" for family in ("deberta-v2", "hubert", "wav2vec2", "blip-2", "videomae"))
    return [
        Cause(id="c-hypot", backend="torchtpu", status=Status.UNSUPPORTED_OP, op="aten::hypot.out",
              message="torch_tpu: no lowering is registered for aten::hypot.out", models=models)
    ]  # fmt: skip


def write_samples(folder: Path) -> None:
    """The page of the whole sample, of one backend in `one`, of no rows in `none`, of passes only in `green`."""
    from reports.page import write_site

    for name, rows in {
        "": sample_rows(),
        "one": sample_rows(("torchtpu",)),
        "none": [],
        "green": [row for row in sample_rows() if row.status.is_pass],
    }.items():
        write_site(folder / name, sample_info(len(rows)), rows, sample_causes() if rows else [])


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]))
