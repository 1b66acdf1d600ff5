"""What the demo shows: the records that were handled, counted, and the table of shards and owners."""

import json
import os
import shutil
import sys


def say(text):
    print(text, flush=True)


class Records:
    """What the handler was given, read from the file it appends to, while it grows."""

    def __init__(self, path):
        self.path = path
        self.file = None
        self.rest = b""
        self.seen = set()
        self.repeated = 0
        self.out_of_order = 0
        self.torn = 0
        self.last = {}  # shard -> (invocation, time of its last record)
        self.newest = {}  # shard -> the greatest sequence number so far
        self.invocations = set()
        self.hand_overs = []  # (shard, from, to, time, milliseconds without an owner at work)

    def read(self):
        if self.file is None:
            if not self.path.exists():
                return
            self.file = self.path.open("rb")
        lines = (self.rest + self.file.read()).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            record = self.parse(line)
            if record is not None:
                self.add(record)

    def parse(self, line):
        """A killed process may leave half a line behind, in front of the next writer's whole one."""
        try:
            return json.loads(line)
        except ValueError:
            self.torn += 1
        start = line.rfind(b'{"invocation"')
        try:
            return json.loads(line[start:]) if start > 0 else None
        except ValueError:
            return None

    def add(self, record):
        shard, invocation, at = record["shard"], record["invocation"], record["at"]
        self.invocations.add(invocation)
        owner, since = self.last.get(shard, (invocation, at))
        if owner != invocation:
            self.hand_overs.append((shard, owner, invocation, at, max(0, at - since)))
        self.last[shard] = (invocation, at)

        key = (shard, record["sequence"], record.get("sub_sequence"))
        if key in self.seen:
            self.repeated += 1
            return
        self.seen.add(key)
        position = (len(key[1]), key[1], key[2] or 0)  # Sequence numbers compare by length, then as text.
        if position < self.newest.get(shard, position):
            self.out_of_order += 1
        self.newest[shard] = position


class Screen:
    """The table: redrawn in place on a terminal, a line every other second elsewhere."""

    def __init__(self):
        self.live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.colour = self.live and "NO_COLOR" not in os.environ
        self.drawn = 0
        self.last_line = 0.0
        self.owners = []

    def erase(self):
        if self.drawn:
            sys.stdout.write(f"\x1b[{self.drawn}A\x1b[J")
            self.drawn = 0

    def event(self, text):
        self.erase()
        say(text)

    def paint(self, owner, text):
        """A colour for each owner, for as long as the demo runs."""
        if not owner or not self.colour:
            return text
        if owner not in self.owners:
            self.owners.append(owner)
        return f"\x1b[{31 + self.owners.index(owner) % 6}m{text}\x1b[0m"

    def draw(self, seconds, put, records, invocations, shards):
        running = [str(i.number) for i in invocations if i.state == "running"]
        head = (f"{seconds:4.0f} s   put {put:,}   processed {len(records.seen):,}   "
                f"repeated {records.repeated:,}   running: {' '.join(running) or 'none'}")
        if self.live:
            self.draw_table(head, shards)
        elif seconds - self.last_line >= 2 or seconds < self.last_line:
            self.last_line = seconds
            owners = "  ".join(f"{s['shard'][-2:]}:{(s['owner'] or '-')[:6]}" for s in shards)
            say(f"{head}   {owners}")

    def draw_table(self, head, shards):
        columns = shutil.get_terminal_size().columns - 1
        rows = [head[:columns], ""[:columns]]
        rows.append(f"{'shard':<22}{'owner':<10}{'lease':>8}{'lag':>10}{'backlog':>9}  checkpoint"[:columns])
        for s in shards:
            owner, lease, lag = s["owner"] or "", s.get("expires_in_ms"), s.get("behind_ms")
            lease = "" if lease is None or not owner else "expired" if lease <= 0 else f"{lease / 1000:.1f} s"
            lag = "?" if lag is None else f"{lag / 1000:.1f} s"
            checkpoint = (s.get("checkpoint") or "-")[-14:]
            row = f"{s['shard']:<22}{owner[:8] or 'nobody':<10}{lease:>8}{lag:>10}{s.get('backlog', '?'):>9}  {checkpoint}"
            rows.append(self.paint(owner, row[:columns]))
        self.erase()
        sys.stdout.write("\n".join(rows) + "\n")
        sys.stdout.flush()
        self.drawn = len(rows)
