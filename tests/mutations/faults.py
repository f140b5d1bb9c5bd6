"""One-line breaks of what keeps a run alive and its result the same: checkpoints, resume, failed ranks, full disks."""

from tests.mutations.mutation import Mutation

DAMAGE = "tests/regressions/test_faults.py"
LOOP = "tests/common/training/test_loop.py"
METRICS = "tests/common/training/test_metrics.py"
EVENTS = "tests/common/training/test_events.py"

MUTATIONS = (
    Mutation("checksums-not-looked-at", "a checkpoint's files are held against their sizes alone", "common/checkpoint/store.py",
             ' or sha256(path) != expected["sha256"]:', ":", (DAMAGE,)),
    Mutation("manifest-not-sealed", "a manifest is believed whatever its own checksum says", "common/checkpoint/manifest.py",
             "if _seal(written.rpartition(_SEAL)[0]) != written:", "if False:", (DAMAGE,)),
    Mutation("torn-checkpoint-passed-over-in-silence", "a checkpoint without a manifest is not even named",
             "common/checkpoint/store.py", "lambda: folders(folder)", "lambda: checkpoints(folder)", (DAMAGE,)),
    Mutation("updates-forgotten", "a resumed optimizer corrects its bias as at the first step", "common/training/loop.py",
             'training.optimizer.steps = manifest["updates"]', "training.optimizer.steps = 0", (LOOP,)),
    Mutation("metrics-kept-twice", "steps after the checkpoint stay in the log when a run goes on",
             "common/training/metrics.py", "            drop_after(path, resume_at)\n", "", (METRICS, LOOP)),
    Mutation("failed-save-ends-training", "a checkpoint that finds no room is an error at once", "common/training/saves.py",
             "                if left == 0:\n", "                if True:\n", (LOOP,)),
    Mutation("lines-lost-on-a-full-disk", "a line of metrics that finds no room is forgotten", "common/training/metrics.py",
             "        self._waiting += line.encode()", "        self._waiting = line.encode()", (METRICS,)),
    Mutation("stopped-run-evaluates", "a run that is stopped logs an evaluation that an undisturbed one has not",
             "common/training/loop.py", "if last or _due(step, config.evaluate_every)",
             "if last or stopped or _due(step, config.evaluate_every)", (LOOP,)),
    Mutation("skipped-steps-move-the-median", "losses of skipped steps count in what a spike is",
             "common/training/events.py", '            self.bad += 1\n            return "skipped"',
             '            self.bad += 1\n            self.losses.append(loss)\n            return "skipped"', (EVENTS,)),
)
