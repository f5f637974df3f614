"""Keeping secrets out of a run directory.

The environment enters by exact names only, and every text that enters (command line, allowed environment
values, labels, names) is read word by word as a shell would: what a name announces is hidden
(`secret_names`), and what looks like a secret is hidden wherever it stands (`secret_shapes`). Over-redaction
costs a reader one argument; a leak cannot be taken back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from perfscope.rundir.environment_names import ALLOWED_NAMES
from perfscope.rundir.layout import HIDDEN
from perfscope.rundir.secret_names import announces, hides, is_strong
from perfscope.rundir.secret_shapes import (
    PRIVATE_KEY,
    hide_piped,
    hide_random,
    hide_shapes,
    looks_random,
    words,
)

__all__ = [
    "MAX_ARGUMENT",
    "allowed_environment",
    "plain_argv",
    "redact_argv",
    "redact_labels",
    "redact_text",
]

MAX_ARGUMENT = 4096  # characters of one argument that are kept
_MAX_SCANNED = 65_536  # characters of one argument that are looked at; far more than is kept
_DEEPEST = 4  # quotes within quotes that are looked into

_WORD = re.compile(r"""(?:\\\s|"[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s"'])+""")
_VALUE = re.compile(
    r"""\\?"[^"\\]*\\?"(?=[\s,}\])&]|\Z)|'[^']*'(?=[\s,}\])&]|\Z)|(?:"[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s"'])+"""
)
_SIGN = r"""["'\\\]%]{0,4}(?::=|\+=|=|:(?!//|:))"""
_WHOLE = re.compile(rf"(?:-D(?=[A-Za-z])|[-+~]{{0,3}})([A-Za-z_][A-Za-z0-9_.\-\[]*){_SIGN}\s{{0,8}}")
_INSIDE = re.compile(
    rf"(?<![A-Za-z0-9_.\-])(?:-D(?=[A-Za-z]))?[-+~]{{0,3}}([A-Za-z_][A-Za-z0-9_.\-]*){_SIGN}\s{{0,8}}"
)
_OPTION = re.compile(r"[-+]{1,3}([A-Za-z_][A-Za-z0-9_.\-]*)\Z")
_ANNOUNCED = re.compile(
    r"""(?:[-+]{0,3}[A-Za-z][\w.\-]{0,80}=)?[\[{(,;]*\\?["']?([A-Za-z_][A-Za-z0-9_.\-]*)\\?["']?:\Z"""
)
_BARE = re.compile(r"[\"']?(?:\S{0,80}[:/])?([A-Za-z_][A-Za-z0-9_.\-]*)[\"']?\Z")
_SCHEMES = ("bearer", "basic", "token", "digest", "apikey", "negotiate")
_USER_OPTION = re.compile(r"-[uUaA]\Z|--(?:[\w\-]{0,40}[\-_])?(?:user|username|login|basic-auth)\Z")
_USER_GLUED = re.compile(r"(-[uU]|--(?:[\w\-]{0,40}[\-_])?(?:user|username|login|basic-auth)=)(?=[^\s=])")
_AUTH_SHORT = {
    "-a": words("http https xh hey"),
    "-A": words("ab"),
}  # programs whose option is `user:password`
_WITHOUT_PASSWORDS = words("squeue sinfo sacct srun salloc sbatch python python3")  # -u X -p Y is no login
_USER_AND_PASSWORD = re.compile(r"([^\s:/@=%]{0,64}:|[^\s:/@=%]{1,64}%)(?![:/])(\S+)\Z")
_SLASHED = re.compile(
    r"([^\s/@=\-][^\s/@=]{0,64}/)([^\s@]+)(@\S{0,256})?\Z"
)  # Oracle's: user/password@database
_SLASHED_PROGRAMS = words("sqlplus sqlcl rman impdp expdp sqlldr")
# Programs whose short option is a password: -pSECRET, -p SECRET.
_GLUED = {
    **dict.fromkeys(
        words("mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump mycli 7z 7za 7zz rar unrar"), "-p"
    ),
    **dict.fromkeys(words("sshpass mongo mongosh mongodump mongorestore clickhouse-client"), "-p"),
    **dict.fromkeys(("redis-cli", "valkey-cli"), "-a"),
    **dict.fromkeys(words("ldapsearch ldapadd ldapmodify ldapwhoami"), "-w"),
    **dict.fromkeys(words("unzip zip sqlcmd ipmitool mosquitto_pub mosquitto_sub mosquitto_rr bcp"), "-P"),
    "openssl": "-k",
}
_ONLY_APART = ("openssl",)  # its -kfile is another option
_ONLY_GLUED = words("mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump 7z 7za 7zz rar unrar")
_LOGINS = words("docker podman nerdctl buildah helm az oc skopeo crane oras apptainer singularity")
_KEY_LOGINS = words("wandb comet swanlab vault bw")  # `wandb login KEY`
# All that is given is secret: `gh secret set NAME --body X`, `vault kv put PATH NAME=X`.
_STORES = words("secret secrets kv vault secretsmanager ssm")
_STORING = words("set put create add write patch import update put-secret-value create-secret put-parameter")
_STORED = words("-b --body -v --value --data --secret-string --plaintext --from-literal")
_PROGRAMS = frozenset(
    (
        *_GLUED,
        *_LOGINS,
        *_KEY_LOGINS,
        *_SLASHED_PROGRAMS,
        *words("lftp htpasswd"),
        *_WITHOUT_PASSWORDS,
        *_AUTH_SHORT["-a"],
        *_AUTH_SHORT["-A"],
    )
)
_SHELLS_C = re.compile(r"-[a-z]{0,3}c\Z")
# Words after which a name and its value follow as two words: `npm config set NAME VALUE`.
_SETS = words("set setenv --set -genv -env configure config")
# Options that are followed by names and values in turn (yacs, mmcv): `--opts SOLVER.LR 0.1 WANDB.KEY X`.
_PAIRS = words("--opts --opt --cfg-options --options --overrides --override")
_YACS = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)+\Z")
_ENDS_COMMAND = frozenset((";", "&&", "||", "|", "&"))


def redact_argv(argv: Iterable[str]) -> list[str]:
    """A command line that may be stored: as many arguments, secrets replaced by `<redacted>`.

    Long random words become `‹redacted N characters›`. Bytes that are not UTF-8 (surrogate escapes) become
    `\\xNN`; an argument longer than `MAX_ARGUMENT` characters is cut and says so.
    """
    line = _Line()
    return [line.argument(as_utf8(word)) for word in argv]


def plain_argv(argv: Iterable[str]) -> list[str]:
    """A command line as it is (`--keep-command-line`), as valid UTF-8, long arguments cut."""
    return [_cut(word, word) for word in map(as_utf8, argv)]


def redact_text(text: str) -> str:
    """`text` with everything that looks like a secret replaced, and cut to `MAX_ARGUMENT` characters."""
    text = as_utf8(text)
    return _cut(_words(PRIVATE_KEY.sub(HIDDEN, text[:_MAX_SCANNED]), 0), text)


def redact_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels or settings that may be stored; the value of `password=...` is hidden for its name."""
    return {
        redact_text(key): HIDDEN if hides(key, as_utf8(value)) else redact_text(value)
        for key, value in labels.items()
    }


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain performance, sorted by name, values redacted. Nothing else enters a run."""
    return {name: redact_text(environment[name]) for name in sorted(environment) if name in ALLOWED_NAMES}


class _Line:
    """Reads the words of one command line, or of a text, one after the other."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._announced = ""  # the name whose value the next word is
        self._bare = ""  # the word before, if it may be a name: `token = X`
        self._before = ""
        self._is_after_user = False  # `-u NAME` came right before the word before
        self._program = ""
        self._login = False
        self._store = ""  # a word of _STORES, then one of _STORING after it
        self._in_pairs = False

    def argument(self, text: str) -> str:
        """A whole argument of argv: all after `--password=` is its value, spaces and commas too."""
        scanned = PRIVATE_KEY.sub(HIDDEN, text[:_MAX_SCANNED])
        match = None if _SHELLS_C.match(self._before) and " " in scanned else _WHOLE.match(scanned)
        if match and not self._announced and hides(match[1], scanned[match.end() :]):
            self._before, self._bare = text, ""
            return match[0].rstrip() + HIDDEN
        return _cut(self.word(scanned), text)

    def word(self, text: str) -> str:
        """A word with what is secret in it replaced."""
        hidden = self._hidden_by_what_came_before(text)
        self._follow(text)
        if text not in ("-p", "-P"):
            named = self._before in ("-u", "-U", "--user", "--username") and re.fullmatch(r"[\w@\-]+", text)
            self._is_after_user = bool(named) and self._program not in _WITHOUT_PASSWORDS
        self._before = text
        return _inside(text, self._depth) if hidden is None else hidden

    def _hidden_by_what_came_before(self, text: str) -> str | None:
        name, self._announced = self._announced, ""
        if name and name == self._before and re.match(r"-\w{1,2}\Z", text):  # `openssl passwd -6 X`
            self._announced = name
            return text
        # After `--token` comes its value, unless the next option follows at once.
        if name and not text.startswith("--"):
            if name.lower() == "authorization" and text.lower() in _SCHEMES:
                self._announced = "authorization"
                return text
            if text in ("=", ":", ":="):
                self._announced = name
                return text
            if hides(name, text):
                return HIDDEN
        # `ngrok authtoken X`
        if self._bare and self._bare == self._before and announces(self._bare) and looks_random(text, 8):
            return HIDDEN
        return self._user_and_password(text) or self._short_option(text) or self._stored(text)

    def _stored(self, text: str) -> str | None:
        """`NAME=X` and `--body X` where the command puts secrets into a store."""
        if self._store not in _STORING:
            return None
        if self._before in _STORED:
            return HIDDEN
        match = _WHOLE.match(text)
        is_value = match is not None and (not text.startswith("-") or match[0].rstrip("=") in _STORED)
        return f"{match[0]}{HIDDEN}" if match is not None and is_value and text != match[0] else None

    def _user_and_password(self, text: str) -> str | None:
        """`-u user:password`."""
        option, value = self._before, text
        if not _USER_OPTION.match(option):
            match = _USER_GLUED.match(text)
            if match is None:
                return None
            option, value = match[1], text[match.end() :]
        if self._program == "lftp" and "," in value:
            return f"{'' if value is text else option}{value.partition(',')[0]},{HIDDEN}"
        if self._program not in _AUTH_SHORT.get(option, (self._program,)):
            return None
        both = _USER_AND_PASSWORD.match(value)
        if both is None or (both[1][:-1].isdigit() and both[2].isdigit()):  # `docker run -u 1000:1000`
            return None
        return f"{'' if value is text else option}{both[1]}{HIDDEN}"

    def _short_option(self, text: str) -> str | None:
        """`mysql -pSECRET`, `redis-cli -a SECRET`, `docker login -p SECRET`, `wandb login KEY`."""
        option = _GLUED.get(self._program, "")
        if self._program in _LOGINS and self._login:
            option = "-p"
        slashed = _SLASHED.match(text) if self._program in _SLASHED_PROGRAMS else None
        if slashed and self._before.rpartition("/")[2] in _SLASHED_PROGRAMS:
            return f"{slashed[1]}{HIDDEN}{slashed[3] or ''}"
        if (
            option
            and text.startswith(option)
            and len(text) > len(option)
            and self._program not in _ONLY_APART
        ):
            return option + HIDDEN
        if option and self._before == option and self._program not in _ONLY_GLUED:
            return HIDDEN
        if self._before in ("-p", "-P") and self._is_after_user and re.search(r"[^\d:.\-]", text):
            return HIDDEN
        if self._program == "htpasswd" and not text.startswith("-") and not self._before.startswith("-"):
            return None if self._before.rpartition("/")[2] == "htpasswd" else HIDDEN  # file, user, password
        if self._program in _KEY_LOGINS and self._login and re.match(r"[^-=\s][^=\s]{7,}\Z", text):
            return HIDDEN
        return None

    def _follow(self, text: str) -> None:
        """What this word says of the next one."""
        if len(text) > 160:
            self._bare = ""
            return
        if text in _ENDS_COMMAND or text.endswith(";"):
            self._program, self._login, self._bare, self._store = "", False, "", ""
            return
        base = text.rpartition("/")[2]
        if base in _PROGRAMS:
            self._program, self._login = base, False
        self._login = self._login or text in ("login", "unlock")
        self._store = self._store_after(text, base)
        self._in_pairs = text in _PAIRS if text.startswith("-") else self._in_pairs
        if text in ("=", ":", ":=") and self._bare:
            self._announced, self._bare = self._bare, ""
            return
        option, label, bare = _OPTION.match(text), _ANNOUNCED.match(text), _BARE.match(text)
        self._bare = bare[1] if bare else ""
        if text in ("-v", "--value") and announces(self._before.lstrip("-")):  # `-n key -v X`
            self._announced = self._before
        elif option and announces(option[1]):
            self._announced = option[1]
        elif label and announces(label[1]):
            self._announced = label[1]
        elif text.lower() in ("bearer", "basic"):
            self._announced = "authorization"
        elif bare and (_is_setting(bare[1]) or (self._is_name_of_pair(text) and announces(bare[1]))):
            self._announced = bare[1]

    def _store_after(self, text: str, base: str) -> str:
        if self._store and text in _STORING:
            return text
        return base if base in _STORES else self._store

    def _is_name_of_pair(self, text: str) -> bool:
        """Whether a bare word is a name whose value follows, by where it is or by how it is spelled."""
        return self._before in _SETS or self._in_pairs or _YACS.match(text) is not None


def _is_setting(name: str) -> bool:
    """Whether a bare word is a setting whose value follows: `aws configure set aws_secret_access_key X`."""
    if name.lower() in ("password", "passwd"):
        return True
    return is_strong(name) and re.search(r"[a-z][_.][a-z]", name) is not None and "." not in name[-4:]


def _words(text: str, depth: int) -> str:
    """A text, word by word; what is between words stays."""
    text = hide_piped(text)
    line, parts, end = _Line(depth), [], 0
    for word in _WORD.finditer(text):
        parts += [text[end : word.start()], line.word(word[0])]
        end = word.end()
    return "".join([*parts, text[end:]])


def _inside(word: str, depth: int) -> str:
    """One word or argument: a quoted or spaced one is a text of its own."""
    if depth < _DEEPEST:
        quote = word[:1] if len(word) > 1 and word[:1] in "\"'" and word.endswith(word[:1]) else ""
        inner = word[len(quote) : len(word) - len(quote)]
        if any(character.isspace() for character in inner) and (quote or _WORD.fullmatch(word) is None):
            match = _WHOLE.match(inner) if quote else None
            if match and hides(match[1], inner[match.end() :]) and "=" not in match[0]:
                return f"{quote}{match[0]}{HIDDEN}{quote}"  # a header: all that follows is its value
            return quote + _words(inner, depth + 1) + quote
    return hide_random(_hide_assigned(hide_shapes(word)))


def _hide_assigned(word: str) -> str:
    """`word` with the values of secret names in it hidden: `{"token":"X"}`, `?key=X`, `a.b.token=X`."""
    parts, end = [], 0
    match = _INSIDE.search(word)
    while match:
        at = match.end()
        # What comes first tells whether it is a secret: reading to the end for each name would be quadratic.
        first = _VALUE.match(word, at, at + 512) if announces(match[1]) else None
        # `bucket/key=image/`: a folder of a partitioned data set.
        is_folder = word[match.start() - 1 : match.start()] == "/" and match[1].lower() in ("key", "session")
        if is_folder and first and not looks_random(first[0], shortest=12):
            first = None
        if first and not first[0].startswith(HIDDEN) and hides(match[1], first[0]):
            parts += [word[end:at], HIDDEN]
            value = _VALUE.match(word, at)
            at = end = value.end() if value else len(word)
        match = _INSIDE.search(word, at)
    return "".join([*parts, word[end:]])


def _cut(kept: str, text: str) -> str:
    """What is kept of a text, cut to `MAX_ARGUMENT` characters."""
    if len(kept) > MAX_ARGUMENT or len(text) > _MAX_SCANNED:
        return f"{kept[:MAX_ARGUMENT]}… ({len(text):,} characters)"
    return kept


def as_utf8(text: str) -> str:
    """Text without lone surrogates: undecodable argv bytes as `\\xNN`."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that is no escaped byte
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
