"""Every model there is. Adding one: a function that fills a Stack, and a line here."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.runners.inputs import InputKind
from perfscope.runners.models.alexnet import alexnet
from perfscope.runners.models.densenet import densenet121
from perfscope.runners.models.dlrm import DlrmSize, dlrm
from perfscope.runners.models.flood import flood_filling
from perfscope.runners.models.googlenet import googlenet
from perfscope.runners.models.inception import inception_v3
from perfscope.runners.models.llama import LlamaSize, llama
from perfscope.runners.models.lstm import LstmSize, lstm
from perfscope.runners.models.mobilenet import mobilenet_v2
from perfscope.runners.models.resnet import resnet
from perfscope.runners.models.small import lenet, mlp, smallcnn, table_mlp
from perfscope.runners.models.stack import Fill, Shape
from perfscope.runners.models.transformer import GptSize, gpt
from perfscope.runners.models.vgg import vgg16, vgg19
from perfscope.runners.models.vit import VitSize, vit

_IMAGE, _SMALL_TEXT, _SMALL_VOCABULARY = (3, 224, 224), (64,), 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One model.

    Attributes:
        name: for `--model`.
        summary: one line for lists.
        classic_input: shape of one sample that it was designed for; any other of its kind fits, too.
        classic_classes: classes that it was designed for; of tokens, the vocabulary.
        learning_rate: of plain SGD; at batches of 16 and small inputs the loss falls within tens of steps.
        input: kind of its samples.
        fill: appends its layers to a Stack, given the number of classes and the dropout probability.
        default_shape: input where none is asked for; None: see default_input.
        default_classes: classes where none are asked for; None: the same for all other models.
        tables: rows of each embedding table, of models that take clicks.
        divisible: whether schemes that cut layers (mp.*, most hy.*) know all of its layers.
    """

    name: str
    summary: str
    classic_input: Shape
    learning_rate: float
    fill: Fill
    input: InputKind = InputKind.IMAGE
    classic_classes: int = 1000
    default_classes: int | None = None
    tables: tuple[int, ...] = ()
    divisible: bool = True
    default_shape: Shape | None = None

    @property
    def default_input(self) -> Shape | None:
        """Shape of a sample where none is asked for; None: the same for all models of images."""
        if self.default_shape is not None:
            return self.default_shape
        return None if self.input is InputKind.IMAGE else self.classic_input


def _language(
    name: str,
    summary: str,
    fill: Fill,
    *,
    length: int = 64,
    vocabulary: int | None = None,
    learning_rate: float = 0.1,
    divisible: bool = True,
) -> ModelInfo:
    """A model of tokens; a published one has a vocabulary of its own."""
    return ModelInfo(
        name=name,
        summary=summary,
        classic_input=(length,),
        learning_rate=learning_rate,
        fill=fill,
        input=InputKind.TOKENS,
        classic_classes=vocabulary or _SMALL_VOCABULARY,
        default_classes=vocabulary,
        divisible=divisible,
    )


_LANGUAGE = (
    _language(
        "gpt-nano", "GPT of 3 blocks of width 48, 3 heads", gpt(GptSize(width=48, num_blocks=3, num_heads=3))
    ),
    _language(
        "gpt-micro",
        "GPT of 4 blocks of width 128, 4 heads",
        gpt(GptSize(width=128, num_blocks=4, num_heads=4)),
    ),
    _language(
        "gpt-mini",
        "GPT of 6 blocks of width 192, 6 heads",
        gpt(GptSize(width=192, num_blocks=6, num_heads=6)),
    ),
    _language(
        "gpt2-124m",
        "GPT-2: 124.4 M parameters, 12 blocks of width 768; head and embedding share weights",
        gpt(GptSize(width=768, num_blocks=12, num_heads=12, tied=True)),
        length=1024,
        vocabulary=50_257,
        learning_rate=0.02,
    ),
    _language(
        "llama-nano",
        "Llama decoder of 4 blocks of width 64, 4 heads on 2 heads of keys",
        llama(LlamaSize(width=64, hidden=192, num_blocks=4, num_heads=4, num_kv_heads=2)),
    ),
    _language(
        "tinyllama-1.1b",
        "TinyLlama: 1.1 G parameters, 22 blocks of width 2048, 32 heads on 4 of keys",
        llama(LlamaSize(width=2048, hidden=5632, num_blocks=22, num_heads=32, num_kv_heads=4)),
        length=2048,
        vocabulary=32_000,
        learning_rate=0.01,
    ),
    _language(
        "llama3.2-1b",
        "Llama 3.2: 1.2 G parameters, 16 blocks of width 2048; head and embedding share weights",
        llama(
            LlamaSize(
                width=2048,
                hidden=8192,
                num_blocks=16,
                num_heads=32,
                num_kv_heads=8,
                theta=500_000.0,
                tied=True,
            )
        ),
        length=8192,
        vocabulary=128_256,
        learning_rate=0.01,
    ),
    _language(
        "llama2-7b",
        "Llama 2: 6.7 G parameters, 32 blocks of width 4096, 32 heads",
        llama(LlamaSize(width=4096, hidden=11008, num_blocks=32, num_heads=32, num_kv_heads=32)),
        length=4096,
        vocabulary=32_000,
        learning_rate=0.01,
    ),
    _language(
        "moe-nano",
        "llama-nano with 4 experts per block of which each token takes 2",
        llama(LlamaSize(width=64, hidden=192, num_blocks=4, num_heads=4, num_kv_heads=2, num_experts=4)),
    ),
    _language(
        "mixtral-8x7b",
        "Mixtral: 46.7 G parameters, 32 blocks of 8 experts of which each token takes 2",
        llama(
            LlamaSize(
                width=4096,
                hidden=14336,
                num_blocks=32,
                num_heads=32,
                num_kv_heads=8,
                theta=1_000_000.0,
                num_experts=8,
            )
        ),
        length=4096,
        vocabulary=32_000,
        learning_rate=0.01,
    ),
)

_RECURRENT = (
    _language(
        "lstm-nano",
        "language model of 2 LSTM layers of width 64",
        lstm(LstmSize(width=64, num_layers=2)),
        learning_rate=0.5,
        divisible=False,
    ),
    _language(
        "lstm-medium",
        "language model of 2 LSTM layers of width 650: 19.8 M parameters",
        lstm(LstmSize(width=650, num_layers=2)),
        length=35,
        vocabulary=10_000,
        learning_rate=0.5,
        divisible=False,
    ),
    _language(
        "lstm-large",
        "language model of 2 LSTM layers of width 1500: 66.0 M parameters",
        lstm(LstmSize(width=1500, num_layers=2)),
        length=35,
        vocabulary=10_000,
        learning_rate=0.5,
        divisible=False,
    ),
)

# Categories of the features of Criteo's Kaggle set, as in the published training of DLRM on it.
_CRITEO = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194),
    *(27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)


def _clicks(name: str, summary: str, size: DlrmSize, num_dense: int, learning_rate: float) -> ModelInfo:
    """A model of clicks, with one category per table."""
    return ModelInfo(
        name=name,
        summary=summary,
        classic_input=(num_dense + len(size.rows),),
        learning_rate=learning_rate,
        fill=dlrm(size),
        input=InputKind.CLICKS,
        classic_classes=2,
        default_classes=2,
        tables=size.rows,
    )


_CLICKS = (
    _clicks(
        "dlrm-nano",
        "DLRM of 8 tables of 16 to 1,600 rows of width 16, and 8 dense features",
        DlrmSize(rows=(64, 16, 32, 100, 200, 400, 800, 1600), width=16, bottom=(64,), top=(64, 32)),
        num_dense=8,
        learning_rate=0.5,
    ),
    _clicks(
        "dlrm-small",
        "DLRM on Criteo's 26 categorical features, tables of at most 20,000 rows: 3.8 M parameters",
        DlrmSize(
            rows=tuple(min(rows, 20_000) for rows in _CRITEO), width=16, bottom=(512, 256, 64), top=(512, 256)
        ),
        num_dense=13,
        learning_rate=0.5,
    ),
    _clicks(
        "dlrm-kaggle",
        "DLRM as published for Criteo's Kaggle set: 540.7 M parameters, 540.2 M of them in 26 tables",
        DlrmSize(rows=_CRITEO, width=16, bottom=(512, 256, 64), top=(512, 256)),
        num_dense=13,
        learning_rate=0.1,
    ),
)

_MORE_IMAGES = (
    ModelInfo(
        name="vgg19",
        summary="VGG-19: 143.7 M parameters, 86 % of them fully connected",
        classic_input=_IMAGE,
        learning_rate=0.001,
        fill=vgg19,
    ),
    ModelInfo(
        name="resnet18",
        summary="ResNet-18: 11.7 M parameters, batch normalization",
        classic_input=_IMAGE,
        learning_rate=0.01,
        fill=resnet(18),
    ),
    ModelInfo(
        name="resnet34",
        summary="ResNet-34: 21.8 M parameters, batch normalization",
        classic_input=_IMAGE,
        learning_rate=0.01,
        fill=resnet(34),
    ),
    ModelInfo(
        name="resnet101",
        summary="ResNet-101: 44.5 M parameters, batch normalization",
        classic_input=_IMAGE,
        learning_rate=0.01,
        fill=resnet(101),
    ),
    ModelInfo(
        name="resnet152",
        summary="ResNet-152: 60.2 M parameters, batch normalization",
        classic_input=_IMAGE,
        learning_rate=0.01,
        fill=resnet(152),
    ),
)


def _image(
    name: str, summary: str, fill: Fill, learning_rate: float, classic_input: Shape = _IMAGE
) -> ModelInfo:
    """A model of images with layers that schemes which cut layers do not know."""
    return ModelInfo(
        name=name,
        summary=summary,
        classic_input=classic_input,
        learning_rate=learning_rate,
        fill=fill,
        divisible=False,
    )


_UNDIVIDED = (
    _image(
        "vit-tiny",
        "vision transformer of 12 blocks of width 192: 5.7 M parameters",
        vit(VitSize(width=192, num_blocks=12, num_heads=3)),
        0.05,
    ),
    _image(
        "vit-small",
        "vision transformer of 12 blocks of width 384: 22.1 M parameters",
        vit(VitSize(width=384, num_blocks=12, num_heads=6)),
        0.05,
    ),
    _image(
        "vit-base",
        "vision transformer of 12 blocks of width 768: 86.6 M parameters",
        vit(VitSize(width=768, num_blocks=12, num_heads=12)),
        0.02,
    ),
    _image("mobilenet-v2", "MobileNet-v2: 3.5 M parameters, convolutions of single maps", mobilenet_v2, 0.05),
    _image(
        "densenet121",
        "DenseNet-121: 8.0 M parameters, layers see all maps of a stage before them",
        densenet121,
        0.02,
    ),
    _image(
        "inception-v3",
        "Inception-v3: 23.8 M parameters without the auxiliary classifier",
        inception_v3,
        0.02,
        (3, 299, 299),
    ),
    ModelInfo(
        name="flood-filling",
        summary="3-D convolutions, 472 k parameters: which voxels are of the object in the center",
        classic_input=(2, 33, 33, 33),
        learning_rate=0.02,
        fill=flood_filling,
        input=InputKind.VOLUME,
        classic_classes=2,
        default_classes=2,
        divisible=False,
        default_shape=(2, 9, 9, 9),
    ),
)

MODELS: tuple[ModelInfo, ...] = (
    ModelInfo(
        name="smallcnn",
        summary="3 convolutions, 2 fully connected layers: for tests and quick looks",
        classic_input=(3, 32, 32),
        learning_rate=0.03,
        fill=smallcnn,
    ),
    ModelInfo(
        name="lenet",
        summary="LeNet-5: 2 convolutions, 3 fully connected layers",
        classic_input=(1, 32, 32),
        learning_rate=0.05,
        fill=lenet,
    ),
    ModelInfo(
        name="mlp",
        summary="3 fully connected layers",
        classic_input=(1, 28, 28),
        learning_rate=0.05,
        fill=mlp,
    ),
    ModelInfo(
        name="alexnet",
        summary="AlexNet, one tower: 61.1 M parameters, 96 % of them fully connected",
        classic_input=_IMAGE,
        learning_rate=0.005,
        fill=alexnet,
    ),
    ModelInfo(
        name="vgg16",
        summary="VGG-16: 138.4 M parameters, 89 % of them fully connected",
        classic_input=_IMAGE,
        learning_rate=0.001,
        fill=vgg16,
    ),
    ModelInfo(
        name="googlenet",
        summary="GoogLeNet (Inception v1): 7.0 M parameters in many small layers",
        classic_input=_IMAGE,
        learning_rate=0.003,
        fill=googlenet,
    ),
    ModelInfo(
        name="resnet50",
        summary="ResNet-50: 25.6 M parameters, batch normalization",
        classic_input=_IMAGE,
        learning_rate=0.01,
        fill=resnet(50),
    ),
    ModelInfo(
        name="transformer",
        summary="decoder-only transformer language model: 4 blocks of width 64, 4 heads; classes are tokens",
        classic_input=_SMALL_TEXT,
        learning_rate=0.1,
        fill=gpt(GptSize(width=64, num_blocks=4, num_heads=4, head_bias=True)),
        input=InputKind.TOKENS,
    ),
    ModelInfo(
        name="table_mlp",
        summary="3 fully connected layers on a row of features",
        classic_input=(64,),
        learning_rate=0.05,
        fill=table_mlp,
        input=InputKind.TABLE,
    ),
    *_MORE_IMAGES,
    *_LANGUAGE,
    *_CLICKS,
    *_RECURRENT,
    *_UNDIVIDED,
)
