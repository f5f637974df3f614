"""What secrets look like where no name announces them: known shapes of tokens, URLs, long random words."""

from __future__ import annotations

import re
from itertools import pairwise

from perfscope.rundir.layout import HIDDEN


def words(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


_SHORTEST = 20  # characters of a word that is judged by its looks

_KNOWN_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      hf_[A-Za-z0-9]{8,} | api_org_[A-Za-z0-9]{8,} | r8_[A-Za-z0-9]{8,} | gsk_[A-Za-z0-9]{16,}
    | xai-[A-Za-z0-9]{16,} | gh[pousr]_[A-Za-z0-9]{8,} | github_pat_[A-Za-z0-9_]{8,}
    | gl[a-z]{2,5}-[A-Za-z0-9_\-]{16,} | glpat-[A-Za-z0-9_\-]{8,}
    | (?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[0-9A-Z]{12,} | (?:sk|pk|rk)[-_][A-Za-z0-9_\-]{12,}
    | whsec_[A-Za-z0-9+/=]{12,} | xox[a-z]-[A-Za-z0-9\-]{8,} | xapp-[A-Za-z0-9\-]{8,}
    | AIza[0-9A-Za-z_\-]{20,} | ya29\.[0-9A-Za-z_\-]{8,} | GOCSPX-[A-Za-z0-9_\-]{8,}
    | 1//0[A-Za-z0-9_\-]{16,} | nvapi-[A-Za-z0-9_\-]{8,} | npm_[A-Za-z0-9]{16,}
    | pypi-[A-Za-z0-9_\-]{16,} | do[opr]_v1_[a-f0-9]{16,} | gl(?:sa|c)_[A-Za-z0-9_=+/\-]{8,}
    | dckr_(?:pat|oat)_[A-Za-z0-9_\-]{8,} | SG\.[A-Za-z0-9_\-]{8,}\.?[A-Za-z0-9_\-]*
    | shp(?:at|ss|ca|pa)_[A-Fa-f0-9]{16,} | dapi[a-f0-9]{16,}(?:-\d)? | hv[sbr]\.[A-Za-z0-9_\-]{12,}
    | tskey-[A-Za-z0-9\-]{12,} | lin_api_[A-Za-z0-9]{12,} | ATATT[A-Za-z0-9_\-=]{12,}
    | pplx-[A-Za-z0-9]{12,} | PMAK-[A-Za-z0-9\-]{12,} | sntry[su]_[A-Za-z0-9_=+/]{12,}
    | ntn_[A-Za-z0-9]{12,} | figd_[A-Za-z0-9_\-]{12,} | rubygems_[a-f0-9]{12,}
    | AGE-SECRET-KEY-[A-Z0-9]{12,} | key-[a-f0-9]{24,} | sq0[a-z]{3}-[A-Za-z0-9_\-]{12,}
    | EAA[A-Za-z0-9]{24,} | \d{8,10}:AA[A-Za-z0-9_\-]{24,} | co_api_[A-Za-z0-9]{12,}
    | secret_[A-Za-z0-9]{24,} | wandb_v1_[A-Za-z0-9_]{12,}
    | eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}(?:\.[A-Za-z0-9_\-]*)?
    )""",
    re.VERBOSE,
)
_WEBHOOK = re.compile(
    r"(?i)(https?://(?:hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/"
    r"|(?:[a-z]{2,8}\.)?discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/"
    r"|[a-z0-9.\-]{0,80}webhook\.office\.com/|outlook\.office(?:365)?\.com/webhook/|hooks\.zapier\.com/|hook\.[a-z0-9.]{0,20}make\.com/|maker\.ifttt\.com/"
    r"|api\.telegram\.org/bot|chat\.googleapis\.com/v1/spaces/|[a-z0-9.\-]{1,80}/hooks/"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/))[^\s\"']+"
)
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{0,31}://)[^\s/\"'?#]{1,4096}@")
# A password with `/`, `?` or `#` in it, which should have been quoted: up to the last @.
_USERINFO_RAW = re.compile(
    r"([A-Za-z][A-Za-z0-9+.\-]{0,31}://)"
    r"[^\s/:@\"']{0,256}:(?!\d{1,5}(?:[/?#\s\"']|\Z))[^\s\"']{1,4096}@"
)
_NO_SCHEME = re.compile(
    r"(?<![A-Za-z0-9_.+\-/:@])([A-Za-z0-9_.+%\-]{1,64}):(?!\d*\.\d+@|\d+(?:\.\d*)?[eE][-+]?\d+@)"  # lr:0.1@9
    r"[^\s@\"'/=:]{1,256}@(?!sha256:)(?=[A-Za-z0-9(\[])"
)
_SCHEME = re.compile(r"(?i)\b((?:bearer|basic)\s{1,8})[A-Za-z0-9._~+/=\-]{6,}")
_SIGNED_QUERY = re.compile(
    r"(?i)([?&](?:sig|signature|x-amz-signature|x-amz-credential|x-goog-signature|key|code|apikey)=)[^&\s\"']+"
)
PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.S,
)
_RUN = re.compile(r"[A-Za-z0-9+/_\-.~]{16,}={0,2}")
_URL = re.compile(r"(?i)https?:/\Z|https?://[^\s]*\Z")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_HEX = re.compile(r"(?i)[0-9a-f]+")
_FEWEST_DISTINCT = 6  # characters of a random word: `xxxxxxxxxxxxxxxxxxxx` is none
_FEWEST_CHANGES = _FEWEST_ODD = 0.45  # of the pairs of neighbors in a jumbled word
_SHORTEST_HEX = 24  # shorter ones are numbers of versions and machines
_HASH_LENGTHS = (40, 64)  # of git and sha256
_PROTEIN = re.compile("[ACDEFGHIKLMNPQRSTVWY]+")  # the 20 amino acids
_TOKEN_FOLDER = re.compile(r"(https?://[^\s\"']{1,200}/t/)([A-Za-z0-9\-]{8,})(?=/)")  # conda's
# A secret that a shell pipes or feeds into the standard input of a login.
_LOGIN = (
    r"(?:--password-stdin|\blogin\b|\bchpasswd\b|\bsmbpasswd\b|\bpasswd\s{1,8}--stdin|\bsudo\s[^|;&]{0,80}-S\b"
    r"|--passphrase-fd\b|\bkinit\b|\bcryptsetup\b|\b(?:secrets?|versions)\s{1,8}(?:set|put|create|add)\b)"
)
_WORD = r"(?:\"[^\"]{1,4096}\"|'[^']{1,4096}'|[^\s\"'|;&]{1,4096})"
_PIPED = re.compile(
    rf"(\b(?:echo|printf)(?:\s{{1,8}}[-%]\S{{0,8}}){{0,3}}\s{{1,8}}){_WORD}(?=\s{{0,8}}\|[^|;&]{{0,200}}{_LOGIN})"
)
_FED = re.compile(rf"({_LOGIN}[^|;&]{{0,200}}<<<\s{{0,8}}){_WORD}")
_SQL = re.compile(
    r"(?i)(\b(?:identified\s{1,8}(?:with\s{1,8}\S{1,80}\s{1,8})?by|password(?:\s{1,8}for\s{1,8}\S{1,80})?)"
    r"(?:\s{0,8}=\s{0,8}|\s{1,8}))(?:'[^']{1,4096}'|\"[^\"]{1,4096}\")"
)
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
# Pairs of letters that make up most of English and of the words of programs.
_PAIRS = words(
    """th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me
    de hi ri ro ic ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no ct us ac ot
    il tr ly nc et ut ss so rs un lo wa ge ie wh ee wi em ad ol rt po we na ul ni ts mo ow pa im mi ai
    sh ir su id os iv ia am fi ci vi pl ig tu ev ld ry mp fe bl ab gh ty op wo sa ay ex ke ui fr oo bo
    ck up ag do da ga pu ap bu gr if rm cr sp oc ob rd ag tt ff pp cc mm nn rr ee dd gg bi ba br fa fl
    ft fu gi gl go gu hu ib iz ip ki ks ld lf lk lt lu lv mb mu my nf nk nl nm nu nv oa od oi og ok ov
    ow ox pi ph ps pt qu rb rc rf rg rk rl rn rp rv sc sk sl sm sn sq sw sy ub ud ue uf ug um tw va vo
    wn ws xp xt ye yp ys yt ze eb ef eg ei ek ep eq ew ey af ah ak au av aw ax az du dr dl"""
)


def hide_shapes(text: str) -> str:
    """`text` with URLs' passwords, webhooks and tokens of known shapes replaced."""
    for pattern, replacement in (
        (_WEBHOOK, rf"\1{HIDDEN}"),
        (_USERINFO_RAW, rf"\1{HIDDEN}@"),
        (_USERINFO, rf"\1{HIDDEN}@"),
        (_NO_SCHEME, rf"\1:{HIDDEN}@"),
        (_SCHEME, rf"\1{HIDDEN}"),
        (_KNOWN_SHAPES, HIDDEN),
        (_SIGNED_QUERY, rf"\1{HIDDEN}"),
    ):
        text = pattern.sub(replacement, text)
    return _TOKEN_FOLDER.sub(
        lambda match: f"{match[1]}{HIDDEN}" if looks_random(match[2], shortest=8) else match[0], text
    )


def hide_piped(text: str) -> str:
    """A text of shell commands or SQL without what goes to a login's standard input, or sets a password."""
    text = _SQL.sub(rf"\1{HIDDEN}", text)
    return _FED.sub(rf"\1{HIDDEN}", _PIPED.sub(rf"\1{HIDDEN}", text))


def hide_random(text: str) -> str:
    """`text` with long random words replaced by `‹redacted N characters›`.

    Paths, hashes of git and of files (40 or 64 hexadecimal digits), UUIDs and numbers stay.
    """
    return _RUN.sub(lambda run: _hidden_run(run, text), text)


def looks_random(text: str, shortest: int = _SHORTEST) -> bool:
    """Whether a stretch of `shortest` letters and digits or more in `text` is no word, number or hash."""
    return any(_is_random(part, shortest) for part in re.split(r"[^A-Za-z0-9+_\-.~]+", _UUID.sub("", text)))


def _hidden_run(run: re.Match[str], text: str) -> str:
    word = run[0]
    if "/" not in word:
        return _hidden(word) if _is_random(word, _SHORTEST) else word
    before = text[max(0, run.start() - 200) : run.start()]
    remote = _URL.search(before) is not None or before.endswith(("http:", "https:"))
    rooted = word.startswith(("/", "./", "../", "~/")) or before.endswith(":")
    if not remote and not rooted and word.count("/") <= len(word) / 8 and _is_jumbled(word):
        return _hidden(word)
    if not remote and _is_path(word, before):
        return word
    if not remote and _is_base64(word):
        return _hidden(word)
    return "/".join(_hidden(part) if _is_random(part, _SHORTEST) else part for part in word.split("/"))


def _hidden(word: str) -> str:
    return f"‹redacted {len(word)} characters›"


def _is_path(word: str, before: str) -> bool:
    """Whether a run with slashes is a place: with a root, a scheme, an extension or words in it."""
    first, *folders = word.lstrip("~.").split("/")
    if before.endswith(":") and word.startswith("//"):
        return True
    if not first and folders and folders[0] and not _surprising(folders[0]) and len(folders[0]) > 2:
        return True
    if word.startswith(("~/", "./", "../")):
        return True
    return bool(_EXTENSION.search(word)) or (
        len(first) > 2 and not _surprising(first) and not _is_base64(word)
    )


def _surprising(word: str) -> bool:
    odd, pairs = _odd_pairs(word)
    return pairs > 0 and odd / pairs > 0.5


def _is_base64(word: str) -> bool:
    """Whether a run with slashes is one secret in base64: random, with letters of both cases and digits."""
    unpadded = word.rstrip("=")
    if len(unpadded) < 32 or "." in unpadded or "~" in unpadded or not _mixed(unpadded, 3):
        return False
    odd, pairs = _odd_pairs(unpadded)
    return pairs > 0 and odd / pairs >= 0.5


def _is_random(word: str, shortest: int) -> bool:
    word = _UUID.sub("", word).rstrip("=")
    chunks = _chunks(word)
    if any(_random_chunk(chunk, shortest) for chunk in chunks) or _is_jumbled(word):
        return True
    # URL-safe base64: cut by - and _ into pieces that no name would be made of.
    joined = "".join(chunks)
    if len(joined) < shortest or not _mixed(joined, 3) or "." in word or len(joined) / len(chunks) < 6:
        return False
    odd, pairs = _odd_pairs("-".join(chunks))
    return odd / max(pairs, 1) >= 0.6


def _is_jumbled(word: str) -> bool:
    """Whether a word with separators changes between capitals, small letters and digits as base64 does.

    In base64 of random bytes two neighbors differ in kind in 64 % of cases, in names of models, nodes and
    files in some 20 %.
    """
    chunks = _chunks(word)
    letters = sum(map(len, chunks))
    if len(word) < _SHORTEST or letters < 0.8 * len(word) or "." in word or not _mixed(word, 3):
        return False
    pairs = [pair for chunk in chunks for pair in pairwise(chunk)]
    changes = sum(_mixed(first + second, 2) for first, second in pairs)
    odd, judged = _odd_pairs("-".join(chunks))
    return changes / max(len(pairs), 1) >= _FEWEST_CHANGES and odd / judged >= _FEWEST_ODD


def _chunks(word: str) -> list[str]:
    return [part for part in re.split(r"[^A-Za-z0-9]+", word) if part]


def _random_chunk(chunk: str, shortest: int) -> bool:
    if len(chunk) < shortest or chunk.isdigit() or len(set(chunk)) < _FEWEST_DISTINCT:
        return False
    if _PROTEIN.fullmatch(chunk):
        return False
    if _HEX.fullmatch(chunk):
        return len(chunk) >= (_SHORTEST_HEX if shortest >= _SHORTEST else shortest) and (
            len(chunk) not in _HASH_LENGTHS
        )
    odd, pairs = _odd_pairs(chunk)
    return odd / pairs >= 0.42


def _mixed(word: str, kinds: int) -> bool:
    """Whether a word has at least `kinds` of capitals, small letters and digits."""
    return (
        sum(any(test(character) for character in word) for test in (str.isupper, str.islower, str.isdigit))
        >= kinds
    )


def _odd_pairs(word: str) -> tuple[int, int]:
    """How many pairs of adjacent characters are unlike words and numbers, and how many pairs there are.

    A capital after a small letter begins a word and counts as neither, nor does what is beside a separator.
    """
    odd = pairs = 0
    for character, two in pairwise(word):
        if not (character.isalnum() and two.isalnum()) or (character.islower() and two.isupper()):
            continue
        pairs += 1
        if character.isalpha() and two.isalpha():
            odd += (character + two).lower() not in _PAIRS
        else:
            odd += not (character.isdigit() and two.isdigit())
    return odd, max(pairs, 1)
