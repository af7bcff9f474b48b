"""Networks and plans of `executed.py`: every strategy, for four devices."""

_SYNTHETIC = ("data.name=synthetic", "data.samples=480", "data.batch=48")
_TINY = (*_SYNTHETIC, "model.size=tiny")
_SMALL = ("depth=4", "heads=4", "kv_heads=4", "embed=128", "hidden=384")
_UNCLIPPED = ("optim.clip=0", "optim.skip_nonfinite=0")
MODELS = {
    "digits": ("digits",),
    "vgg16": ("vgg16", *_TINY, "model.width=16", *_UNCLIPPED),
    "alexnet": ("alexnet", *_TINY),
    "llama": (
        *("llama", "data.name=synthetic", "data.samples=320", "data.batch=32"),
        *(
            "data.context=64",
            "model.size=tiny",
            "model.context=64",
            *(f"model.{each}" for each in _SMALL),
        ),
    ),
    "captions": ("captions",),
}
"""Experiment and overrides: networks of every kind, between 0.1 and 3 million
parameters. Of these only the last begins like anything that `calibrate` times."""

_PARTS = ("optim.accumulate=4",)
_PLANS = {
    "data": ({"data": 4},),
    "fsdp": ({"fsdp": 4},),
    "zero 1": ({"fsdp": 4}, "plan.zero=1"),
    "tensor": ({"tensor": 4},),
    "data+tensor": ({"data": 2, "tensor": 2},),
    "data+fsdp": ({"data": 2, "fsdp": 2},),
    "fsdp+tensor": ({"fsdp": 2, "tensor": 2},),
    "2 microbatches": ({"data": 4}, "optim.accumulate=2"),
    "1f1b": ({"pipe": 2, "data": 2}, *_PARTS),
    "gpipe": ({"pipe": 2, "data": 2}, "plan.pipe.schedule=gpipe", *_PARTS),
    "4 stages": ({"pipe": 4}, *_PARTS),
    "eager": ({"pipe": 2, "data": 2}, "plan.pipe.schedule=eager-1f1b", *_PARTS),
    "4 eager stages": ({"pipe": 4}, "plan.pipe.schedule=eager-1f1b", *_PARTS),
    "pipe+tensor": ({"pipe": 2, "tensor": 2}, *_PARTS),
    "int8": ({"data": 4}, "plan.reduce.algorithm=int8"),
    "top_k": ({"data": 4}, "plan.reduce.algorithm=top_k"),
}
_OF_IMAGES = {
    "spatial": ({"spatial_h": 4},),
    "data+spatial": ({"data": 2, "spatial_h": 2},),
    "spatial+tensor": ({"spatial_h": 2, "tensor": 2},),
}
_FLOWING = {
    "pipedream": (
        {"pipe": 4},
        *("plan.pipe.schedule=pipedream", "optim.accumulate=8"),
    ),
}
_OF_VGG = {
    "4 dense stages": (
        {"pipe": 4},
        *("plan.pipe.cuts=flatten,dense2,head", *_PARTS),
    ),
    "4 eager dense stages": (
        {"pipe": 4},
        *("plan.pipe.cuts=flatten,dense2,head", "plan.pipe.schedule=eager-1f1b"),
        *_PARTS,
    ),
    "pipedream 3-1": (
        {"pipe": 4},
        *("plan.pipe.schedule=pipedream", "plan.pipe.replicas=3,1"),
        *("plan.pipe.cuts=flatten", "optim.accumulate=12"),
    ),
}
LOSSY = ("int8", "top_k", "pipedream", "pipedream 3-1")
"""Plans under which a step does not do what it does on one device."""


def pool(model):
    """Return {name: overrides} of the plans that a network is run under."""
    images = model in ("digits", "vgg16", "alexnet")
    plans = _PLANS | (_OF_IMAGES if images else {})
    plans |= _FLOWING if model in ("digits", "vgg16") else {}
    plans |= _OF_VGG if model == "vgg16" else {}
    plans = {name: _words(*plan) for name, plan in plans.items()}
    if model == "alexnet":
        del plans["spatial"]  # 64 rows are two of its strides
    return plans


def _words(sizes, *more):
    sizes = {"data": 1, "spatial_h": 1} | sizes
    return [*(f"plan.mesh.{axis}={n}" for axis, n in sizes.items()), *more]
