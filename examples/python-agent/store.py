"""Performed and undone steps, in one file.

One row for an idempotency key: a booking with its outputs, or a tombstone. A key is never forgotten
here; a service of your own must keep it for as long as attempts can still come.
"""

import contextlib
import json
import sqlite3
import uuid


class Undone(Exception):
    """The step was undone under this key, so it must not be performed."""


class StoreBusy(Exception):
    """The file could not be locked in time. Nothing took effect."""


class Store:
    def __init__(self, path):
        # Autocommit: transactions are begun and ended below.
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        # An answered request must survive a later power loss.
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS bookings"
            " (key TEXT PRIMARY KEY, seats INTEGER, outputs TEXT, undone INTEGER NOT NULL)"
        )

    def perform(self, key, seats, seconds):
        """Books once; a repeat gets the same result."""
        with self.transaction(seconds):
            row = self.row(key)
            if row is None:
                outputs = {"booking": f"booking-{uuid.uuid4()}", "seats": str(seats)}
                self.database.execute(
                    "INSERT INTO bookings VALUES (?, ?, ?, 0)", (key, seats, json.dumps(outputs))
                )
                return outputs
            outputs, undone = row
            if undone:
                raise Undone
            return outputs

    def undo(self, key, seconds):
        """Undoes a step, or blocks a key that has not arrived yet."""
        with self.transaction(seconds):
            self.database.execute(
                "INSERT INTO bookings VALUES (?, NULL, NULL, 1)"
                " ON CONFLICT (key) DO UPDATE SET undone = 1",
                (key,),
            )

    def find(self, key, seconds):
        """The outputs of the effect under the key, or None."""
        with self.transaction(seconds):
            row = self.row(key)
        return None if row is None or row[1] else row[0]

    def close(self):
        self.database.close()

    def row(self, key):
        found = self.database.execute("SELECT outputs, undone FROM bookings WHERE key = ?", (key,))
        row = found.fetchone()
        return None if row is None else (json.loads(row[0] or "{}"), bool(row[1]))

    @contextlib.contextmanager
    def transaction(self, seconds):
        """Waits at most this long for other writers of the file."""
        self.database.execute(f"PRAGMA busy_timeout = {max(0, int(seconds * 1000))}")
        try:
            self.database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise StoreBusy(str(error)) from error
        try:
            yield
        except BaseException:
            self.database.execute("ROLLBACK")
            raise
        self.database.execute("COMMIT")
