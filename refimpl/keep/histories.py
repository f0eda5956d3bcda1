"""Former names of `History.save`, `History.load` and `History.save_samples`."""

from refimpl.history import History

to_csv, from_csv = History.save, History.load
samples_to_jsonl = History.save_samples
