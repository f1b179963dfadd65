"""A journal of results, from which long work resumes: JSON lines, appended as results arrive."""

import json
import os
from pathlib import Path
from typing import Any

from rgals.runtime.checks import plain_number
from rgals.runtime.errors import InputError

_FIRST = b'{"key": "setting"'  # how every journal begins


def _plain(value: Any) -> Any:
    plain = plain_number(value)
    return json.JSONEncoder().default(value) if plain is value else plain


as_json = json.JSONEncoder(default=_plain).encode  # takes numbers of numpy, too


class Journal(dict[str, dict[str, Any]]):
    """Results by key, kept in a file of JSON lines; the first line is the setting that all share."""

    # Files of another setting are refused, and damaged ones, except that an incomplete last line, which an
    # interruption leaves, is dropped.

    def __init__(self, path: Path, setting: dict[str, Any]) -> None:
        self.path = path
        setting = json.loads(as_json(setting))
        if path.exists():
            self._read()
        if not self:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
            self.add("setting", {"setting": setting})
        elif (found := self.get("setting", {}).get("setting")) != setting:
            found = found if isinstance(found, dict) else {}
            differ = ", ".join(k for k in {**setting, **found} if found.get(k, ...) != setting.get(k, ...))
            problem = f"results of other settings ({differ}); choose another place or remove it"
            raise InputError(f"{self.path} holds {problem}")

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole, _, torn = content.rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                record = json.loads(line)
                self[record["key"]] = record
            except (ValueError, KeyError, TypeError) as error:
                problem = f"line {number} is damaged ({error}); remove the file to start again"
                raise InputError(f"{self.path}, {problem}") from error
        if torn and not whole and not torn.startswith(_FIRST[: len(torn)]):
            raise InputError(f"{self.path} is not a journal and was not changed; choose another place")
        if torn:
            os.truncate(self.path, len(content) - len(torn))

    def add(self, key: str, record: dict[str, Any]) -> dict[str, Any]:
        """Append a record and flush it to the disk."""
        text = as_json({"key": key, **record})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        self[key] = json.loads(text)
        return self[key]
