"""No secret gets into a run directory; what is no secret stays readable."""

from __future__ import annotations

import json
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.rundir.layout import HIDDEN
from perfscope.rundir.redact import MAX_ARGUMENT, allowed_environment, redact_argv, redact_text

SECRET = "Zq9!x,y;w&v/u"


@pytest.mark.parametrize(
    "argv",
    [
        ["--token", SECRET],
        ["--token=" + SECRET],
        ["--hf-token", SECRET],
        ["--hf_token=" + SECRET],
        ["-token", SECRET],
        ["--api-key", SECRET],
        ["--api_key=" + SECRET],
        ["--apiKey=" + SECRET],
        ["--wandb-key", SECRET],
        ["--password", SECRET],
        ["--db-passwd=" + SECRET],
        ["--password=correct " + SECRET],
        ["--client-secret", SECRET],
        ["--credentials", SECRET],
        ["FOO_SECRET=" + SECRET],
        ["env", "AWS_SECRET_ACCESS_KEY=" + SECRET, "python"],
        ["-DTOKEN=" + SECRET],
        ["+logger.wandb.api_key=" + SECRET],
        ["hub.token=" + SECRET],
        ["Authorization:", SECRET],
        ["--header", "Authorization: Bearer " + SECRET],
        ["Bearer", SECRET],
        ["bash", "-c", f"TOKEN={SECRET} python train.py"],
        ["bash", "-c", f"python train.py --token {SECRET} --epochs 3"],
        ["bash", "-c", f'python train.py --token "{SECRET} {SECRET}"'],
        ["bash", "-c", f"export PASSWORD='{SECRET}'; python t.py"],
        ["bash", "-c", f'PASSWORD="{SECRET}'],
        ["--config", json.dumps({"lr": 1, "token": SECRET, "x": 2})],
        ["--dsn", f"postgres://user:{SECRET.replace('/', '')}@db.example/x"],
        ["pip", f"git+https://{SECRET.replace('/', '')}@github.com/x/y"],
        ["https://u:p@ss" + SECRET.replace("/", "") + "@host/p"],
        ["https://bucket.example/x?X-Amz-Signature=" + SECRET.replace("&", "")],
    ],
)
def test_named_secrets_are_hidden(argv: list[str]) -> None:
    stored = redact_argv(["python", "train.py", *argv])
    assert len(stored) == len(argv) + 2
    for part in (SECRET, SECRET[:6], SECRET[-6:]):
        assert part not in " ".join(stored)
    assert HIDDEN in " ".join(stored)


@pytest.mark.parametrize(
    "value",
    [
        "hf_abcdefghijklmnop",
        "ghp_0123456789abcdefghij",
        "github_pat_11ABCDE_0123456789",
        "glpat-abcdefgh12345",
        "AKIAIOSFODNN7EXAMPLE",
        "sk-proj-abcdefghijklmnop",
        "xoxb-1234567890-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "nvapi-abcdefgh0123",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nxyz\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIE",
    ],
)
def test_known_shapes_of_secrets_are_hidden_anywhere(value: str) -> None:
    for text in (value, f"--x={value}", f"a {value} b", f"'{value}'", f"[{value},1]"):
        assert value not in redact_text(text)
        assert value[-6:] not in redact_text(text)


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "-u", "train.py", "--epochs", "3", "--lr=0.1"],
        ["--tokenizer", "gpt2", "--max-tokens", "512", "--num_tokens=8", "--tokenizer-name=bert"],
        ["TOKENIZERS_PARALLELISM=false", "author=me", "--authors", "a"],
        ["--token-file", "/etc/token", "--pad-token-id", "0", "--token-dropout=0.1"],
        ["--data", "s3://bucket/path", "https://example.org/a?b=c", "a@b.example"],
        ["--sort-key", "x", "--key", "image", "--monkey=1", "--image-key", "jpg"],
        ["</script>", "new\nline", "tab\t", "", "--", "*", "é", "\u2028"],
        ["0123456789abcdef0123456789abcdef01234567"],
        ["torchrun", "--rdzv-endpoint=host:29500", "train.py"],
    ],
)
def test_ordinary_arguments_stay_as_they_are(argv: list[str]) -> None:
    assert redact_argv(argv) == argv


def test_flag_without_a_value_does_not_hide_the_next_option() -> None:
    assert redact_argv(["--use-auth-token", "--epochs", "3"]) == ["--use-auth-token", "--epochs", "3"]


def test_bytes_that_are_no_utf8_become_readable_escapes() -> None:
    assert redact_argv(["caf\udce9", "\udc80\udcff"]) == ["caf\\xe9", "\\x80\\xff"]
    assert redact_argv(["\ud800"]) == ["\\ud800"]


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a-",
        "-",
        "a.",
        " ",
        "token",
        "token=",
        '"',
        "'",
        "://",
        "@",
        "eyJ",
        "-----BEGIN ",
        "hf_",
        "a:",
        "\n",
    ],
)
def test_a_megabyte_of_anything_is_cut_and_takes_no_time(unit: str) -> None:
    text = (unit * (1 << 20))[: 1 << 20]
    start = time.process_time()
    stored = redact_text(text)
    assert time.process_time() - start < 20  # a quadratic pattern takes minutes
    assert len(stored) <= MAX_ARGUMENT + 40
    assert stored.endswith("(1,048,576 characters)")


def test_secret_beyond_the_cut_is_not_stored() -> None:
    text = "x " * 3000 + "--token " + SECRET
    assert SECRET[:6] not in redact_text(text)


@given(st.lists(st.text(max_size=30), max_size=8))
def test_any_command_line_is_stored_as_valid_utf8_with_as_many_arguments(argv: list[str]) -> None:
    stored = redact_argv(argv)
    assert len(stored) == len(argv)
    for text in stored:
        assert text.encode("utf-8").decode("utf-8") == text


@given(
    st.sampled_from(
        ["token", "TOKEN", "secret", "password", "api-key", "API_KEY", "access_key", "private.key"]
    ),
    st.sampled_from(["", "my-", "HF_", "a.b.", "x_y_"]),
    st.sampled_from(["=", ":"]),
    # A path is where the secret is, and may be shown.
    st.text(
        alphabet=string.ascii_letters + string.digits + "!,;/&?#%^*()[]{}|<>~ ", min_size=8, max_size=40
    ).filter(lambda value: not value.startswith(("/", "~/"))),
)
def test_assignment_to_a_secret_name_never_shows_its_value(
    name: str, prefix: str, sign: str, value: str
) -> None:
    stored = redact_argv([f"--{prefix}{name}{sign}{value}"])[0]
    assert stored == f"--{prefix}{name}{sign}{HIDDEN}"


def test_environment_enters_by_name_only() -> None:
    environment = {
        "OMP_NUM_THREADS": "4",
        "NCCL_DEBUG": "INFO",
        "NCCL_TOKEN": "s",
        "GLOO_KEY": "s",
        "OMP_PASSWORD": "s",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "KMP_AFFINITY": "https://u:pw@x",
        "WANDB_API_KEY": "s",
        "AWS_ACCESS_KEY_ID": "s",
        "SLURM_JWT": "s",
        "TORCH_SECRET": "s",
        "PATH": "s",
        "HOME": "s",
    }
    assert allowed_environment(environment) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "KMP_AFFINITY": f"https://{HIDDEN}@x",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
    }
