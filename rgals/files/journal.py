"""The record of long work: one JSON object a line, appended as results arrive, read again to resume."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from rgals.runtime.errors import InputError

_FIRST = b'{"key": "setting"'  # how every journal begins
as_json = json.JSONEncoder(default=np.generic.item).encode  # numpy's numbers are numbers


class Journal:
    """Results by key, kept in a file of JSON lines; its first line is the setting that all results share."""

    # A file of another setting is refused. So is a damaged one, but for a last line that an interruption cut
    # short.

    def __init__(self, path: Path, setting: dict[str, Any]) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        setting = json.loads(as_json(setting))
        if path.exists():
            self._read()
        if not self.records:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
            self.add("setting", {"setting": setting})
        elif (found := self.records.get("setting", {}).get("setting")) != setting:
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
                self.records[record["key"]] = record
            except (ValueError, KeyError, TypeError) as error:
                problem = f"line {number} is damaged ({error}); remove the file to start again"
                raise InputError(f"{self.path}, {problem}") from error
        if torn and not whole and not torn.startswith(_FIRST[: len(torn)]):
            raise InputError(f"{self.path} is no journal; it stays as it is. Choose another place")
        if torn:
            os.truncate(self.path, len(content) - len(torn))

    def get(self, key: str) -> dict[str, Any] | None:
        """The record of a key, or None."""
        return self.records.get(key)

    def add(self, key: str, record: dict[str, Any]) -> dict[str, Any]:
        """Append a record, to the disk before this returns."""
        text = as_json({"key": key, **record})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[key] = json.loads(text)
        return self.records[key]
