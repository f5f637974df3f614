"""Which names announce a secret: `--hf-token`, `DBPASSWORD`, `hub.apiKey`, but not `--num-tokens`.

A name is cut into parts at separators, digits and changes of case, and every part is looked at, also
where words are glued together. Some words (password, secret) hide whatever follows. Others (token, key,
pass) are also ordinary words of training: there numbers, paths and the values of known names stay.
"""

from __future__ import annotations

import re
from functools import lru_cache

from perfscope.rundir.secret_shapes import looks_random, words

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")

# Hidden whatever the value is.
_STRONG_INSIDE = re.compile(
    r"passw(?:or)?d|passwort|passphrase|passcode|kennwort|secret(?!ary)|credential|jwt"
    r"|(?:api|access|private|signing|encryption)key"
)
_STRONG = words(
    """pwd pw psw pswd pws dsn cred creds cookie cookies bearer authorization webhook webhooks mnemonic otp
    totp sas userpwd passkey sessionid sessid phpsessid"""
)
_STRONG_ENDS = ("pwd", "dsn", "creds", "cookie", "webhook")
# Ordinary words of training as well.
_WEAK = words("pass token key auth oauth pat session signature")
_GLUED_TOKEN = re.compile(r"token(?!i[sz]|s|wise|len|level|type)|(?:api|auth|access|refresh|hf|hub)tokens")
_GLUED_ENDS = ("pass", "key", "auth", "session", "cred", "keyid")
_ENGLISH = words(
    """monkey donkey turkey hockey jockey whiskey hotkey lackey turnkey bypass compass trespass surpass
    encompass overpass underpass lowpass highpass bandpass forwardpass backwardpass fwdpass bwdpass
    multipass onepass twopass singlepass firstpass secondpass nopass sacred"""
)
_GLUED_PATS = words("ghpat githubpat gitlabpat azurepat adopat gitpat patvalue")
# Hidden where the value looks random; codes of digits too.
_HINTS = words("tok keys salt hmac signing license license")
_CODES = words("pin mfa 2fa")
_PHRASES = re.compile(
    r"\b(?:connectionstring|connstr|fromliteral)\b|(?:seed|recovery|backup)phrase"
    r"|(?:access|verification|security|login|invite|sms|backup|recovery)code"
)
_PLURALS = frozenset(("tokens", "keys", "sessions"))  # counts and lists, unless a word below is beside them
_OF_SERVICES = words(
    """api access auth oauth refresh secret private bearer hf hub huggingface github gitlab aws azure gcp
    wandb openai anthropic ssh service account"""
)
# As the last part: the value is not the secret itself.
_TAILS = words(
    """file files path paths dir folder jar len length size sizes count counts num type types dim dims
    limit budget method mode name names env timeout interval intervals ttl format algorithm alg policy
    version provider"""
)
_WEAK_TAILS = words(
    """dropout drop prob min max rate weight mask embed embedding embeddings head heads position positions
    index idx column columns field fields level loss acc accuracy ratio per parallel init std merging
    pruning mixer mixing merge shift order map encoder decoder frame frames point points scheme backend
    through manager config"""
)
_CONTEXT = {
    "token": words(
        """num n max min per total avg pad eos bos cls sep mask unk special stop end begin start image img
    video audio vision prompt vocab new patch drop mixing merge class type sequence seq add"""
    ),
    "key": words(
        """sort image img text label feature group primary foreign dict json column state metric loss reward
    action obs query value values attn attention rope norm partition shard rng prng caption content
    field monitor input target output prompt chosen rejected response answer question messages
    conversation sample batch data num n kv qkv"""
    ),
    "pass": words(
        """through forward backward fwd bwd low high band filter first second multi single two three num n per
    at k by manager"""
    ),
    "session": frozenset(("num", "n", "tmux", "screen")),
}
_KEY_VALUES = words(
    """image images img jpg jpeg png text txt label labels cls input inputs target targets loss id name
    data x y"""
)
_NO_VALUES = words("true false yes no on off none null auto default basic oidc kerberos anonymous")
_NUMBER = r"[-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:[kKMGTB%]{0,2})"
_ANY_NUMBER = re.compile(rf"\[?\s*{_NUMBER}(?:\s*[,:]\s*{_NUMBER})*\s*\]?\Z")
_SHORT_NUMBER = re.compile(r"[-+]?(?:\d{1,6}|\d{0,4}\.\d{1,6}|\d(?:\.\d{1,3})?[eE][-+]?\d{1,3})\Z")
_PLAIN = re.compile(r"[A-Za-z_<\[{|/\\$'\"(][A-Za-z_.,\-<>|\[\]{}/\\$'\" ()]{0,63}\Z")
_PATH = re.compile(
    r"(?:(?:~|\.{1,2})/|/(?:home|etc|run|var|root|opt|mnt|data|tmp|scratch|usr|secrets|workspace|proc|dev|gpfs|lustre|nfs"
    r"|work|shared|users|Users)/)[\w.\-/]*\Z|[\w.\-/]+\.(?:pem|key|json|ya?ml|txt|toml|env|crt|ini|cfg|npy|pt|py)\Z"
)


def hides(name: str, value: str) -> bool:
    """Whether `value`, given under `name` (`--hub-token`, `DB_PASSWORD`, `a.b.token`), must not be shown."""
    kind_found = _kind(name[-256:])
    if not kind_found or value == "":
        return False
    kind, qualified = kind_found
    bare = value.strip("'\"").rstrip(")]}")
    lowered = bare.lower()
    if _PATH.match(bare) and not looks_random(bare, shortest=20):
        return False
    if kind == "strong":
        return re.fullmatch(r"\d", bare) is None
    if kind in ("hint", "code"):
        is_code = kind == "code" and re.fullmatch(r"\d{4,12}", bare) is not None
        return is_code or looks_random(bare, shortest=8)
    if lowered in _NO_VALUES:
        return False
    if qualified:  # known as no secret: hidden only where the value is no word and no number
        return looks_random(bare, shortest=12) or not (_ANY_NUMBER.match(bare) or _PLAIN.match(bare))
    if kind == "pass" and not re.fullmatch(r"\d{1,3}", bare):
        return True
    if kind == "key" and lowered in _KEY_VALUES and len(_parts(name)) == 1:
        return False
    if kind == "session" and re.fullmatch(r"[a-z]{1,8}", bare):
        return False
    return _SHORT_NUMBER.match(bare) is None


def announces(name: str) -> bool:
    """Whether a name may announce a secret at all, whatever its value."""
    return _kind(name[-256:]) is not None


def is_strong(name: str) -> bool:
    """Whether a name announces a secret whatever its value (`password`, `client_secret`)."""
    kind = _kind(name[-256:])
    return kind is not None and kind[0] == "strong"


def _parts(name: str) -> list[str]:
    return [part.lower() for part in _PART.findall(name)]


@lru_cache(maxsize=1024)
def _kind(name: str) -> tuple[str, bool] | None:
    """What a name announces: "strong", or its ordinary word, and whether its other words make it harmless.

    None: no secret.
    """
    *groups, last = name.lstrip("-+~").split(".")
    parts = _parts(last)
    for group in groups:  # `secrets.hf`, `auth.value`: a group of secrets, whatever the last part is called
        of_group = _parts(group)
        if any(_word(part) for part in of_group) and len(of_group) == 1 and of_group[0] != "session":
            parts = of_group + parts
    name_words = {part: word for part in parts if (word := _word(part))}
    plain = set(parts) - set(name_words)
    if "sas" in name_words and len(parts) == 1:
        return None
    if not name_words:
        if _PLURALS & set(parts) and _OF_SERVICES & set(parts):
            return "token", False
        return _hinted(parts, last)
    tail = parts[-1] if parts[-1] in plain else ""
    if "strong" in name_words.values():
        # `--password-file X` names a place; a secret there is still hidden by its looks.
        return ("pass", True) if tail in _TAILS else ("strong", False)
    if {"key", "id"} <= set(parts) and plain & _OF_SERVICES:
        return "key", False
    qualified = bool(tail in _TAILS or tail in _WEAK_TAILS)
    for word in name_words.values():
        qualified = qualified or bool(plain & _CONTEXT.get(word, frozenset()))
    if plain & _OF_SERVICES and tail not in _TAILS and tail not in _WEAK_TAILS:
        qualified = False
    return next(iter(name_words.values())), qualified


def _hinted(parts: list[str], name: str) -> tuple[str, bool] | None:
    """What a name without a word of secrets announces."""
    if _PHRASES.search("".join(parts)):
        return "strong", False
    if _CODES & {*parts, name[:3].lower()}:
        return "code", False
    return ("hint", False) if _HINTS & set(parts) else None


def _word(part: str) -> str:
    """The word of secrets in a part of a name: "strong", "token", "key" and so on; "" = none."""
    if part in _ENGLISH or part == "cookiecutter":
        return ""
    if part in _STRONG or _STRONG_INSIDE.search(part) or part.endswith(_STRONG_ENDS):
        return "strong"
    if part in _WEAK:
        return "auth" if part == "oauth" else part
    if part in _GLUED_PATS:
        return "pat"
    if _GLUED_TOKEN.search(part):
        return "token"
    return next(
        (end.removesuffix("id") for end in _GLUED_ENDS if len(part) > len(end) and part.endswith(end)), ""
    )
