"""Files of a data set on the Hugging Face hub: text and JSON lines, fetched as they are. No code of it is run."""

from fnmatch import fnmatch
from pathlib import Path

from data.text_files import JSONL_SUFFIXES, NOT_READ, TEXT_SUFFIXES, form

PREFIX = "hf:"


def fetch(name: str) -> list[Path]:
    """The files of "hf:OWNER/NAME", or those that "hf:OWNER/NAME:PATTERN" names, in the hub's cache on this machine.

    Without a pattern, all JSON lines, or else all text but the README. Raises ValueError where the hub cannot be
    reached, knows no such data set, or has it in other forms alone.
    """
    from huggingface_hub import HfApi, hf_hub_download

    repository, _, pattern = name.removeprefix(PREFIX).partition(":")
    try:
        info = HfApi().dataset_info(repository)
        chosen = choose([each.rfilename for each in info.siblings], pattern)
        if not chosen:
            forms = ", ".join(sorted({Path(each.rfilename).suffix or each.rfilename for each in info.siblings}))
            raise ValueError(f"{name} has no file of text or JSON lines{' of that pattern' * bool(pattern)}; it has "
                             f"{forms}: convert it to JSON lines and give the files")
        return [Path(hf_hub_download(repository, file, repo_type="dataset", revision=info.sha)) for file in chosen]
    except ValueError:
        raise
    except Exception as error:  # the client passes on what its HTTP library raises
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name}: the hub did not give it ({line}); check name and network, or give local files") from None


def choose(files: list[str], pattern: str = "") -> list[str]:
    """Those to read, in order of their names."""
    if pattern:
        return sorted(file for file in files if fnmatch(file, pattern))
    readable = [Path(file) for file in files if Path(file).suffix.lower() not in NOT_READ]
    lines = sorted(str(path) for path in readable if form(path) in JSONL_SUFFIXES)
    return lines or sorted(str(path) for path in readable if form(path) in TEXT_SUFFIXES - {".md", ".py"})
