"""Local text and JSON-lines files."""

import json

import pytest

from data.text_files import PIECE_CHARACTERS, read_local


def read(path, key="text", max_bytes=None):
    return list(read_local(path, key, max_bytes))


def test_text_file_is_cut_at_blank_lines(tmp_path):
    paragraphs = [f"paragraph {i}\n" + "word " * 40 for i in range(300)]
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join(paragraphs), encoding="utf-8")
    found = read(path)
    assert len(found) > 50
    assert [p for d in found for p in d.text.split("\n\n")] == [p.strip() for p in paragraphs]
    assert len({document.package for document in found}) == len(found)
    assert all(len(document.text) >= PIECE_CHARACTERS[0] / 2 for document in found)


def test_text_without_blank_lines_is_cut_at_line_ends(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {i} of a long list of lines\n" for i in range(1000)), encoding="utf-8")
    found = read(path)
    assert len(found) > 5
    assert "\n".join(document.text for document in found) == path.read_text(encoding="utf-8").strip()


def test_separator_lines_win(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text("one\n\n" + "long " * 3000 + "\n<|endoftext|>\ntwo <|endoftext|> inside\n<|endoftext|>\n")
    texts = [document.text for document in read(path)]
    assert [text[:3] for text in texts] == ["one", "two", ""]
    assert texts[1] == "two <|endoftext|> inside"


def test_folder_of_many_files_keeps_each_whole(tmp_path):
    for i in range(12):
        (tmp_path / f"{i:02}.md").write_text(f"file {i}\n\n" + "text\n\n" * 500, encoding="utf-8")
    (tmp_path / "ignored.bin").write_bytes(b"\0\1")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "more.jsonl").write_text('{"text": "a"}\n\n{"text": "b"}\n')
    found = read(tmp_path)
    assert [document.package for document in found[:12]] == [f"{i:02}.md" for i in range(12)]
    assert [(d.text, d.package) for d in found[12:]] == [("a", "below/more.jsonl:1"), ("b", "below/more.jsonl:3")]


def test_unicode_forms_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffcafe\u0301  \r\nfin\r".encode())
    assert [document.text for document in read(path)] == ["café\nfin"]


def test_jsonl_key_and_escapes(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"body": "snow \u2603 and \U0001f600"}) + "\n", encoding="ascii")
    assert read(path, "body")[0].text == "snow ☃ and 😀"


def test_max_bytes_stops_between_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "éé"}\n{"text": "cc"}\n', encoding="utf-8")
    assert [d.text for d in read(path, max_bytes=5)] == ["éé"]
    assert [d.text for d in read(path, max_bytes=6)] == ["éé", "cc"]


@pytest.mark.parametrize("name, content, message", [
    ("a.txt", b"text\n\xff\xfe\n", r"a\.txt, line 2: byte 0xff at column 1 is not UTF-8; convert"),
    ("a.txt", "text".encode("utf-16"), r"a\.txt, line 1: a zero byte.*UTF-16 file; convert"),
    ("a.png", b"\x89PNG\r\n\x1a\n\0\0", r"a\.png, line 1: byte 0x89"),
    ("a.txt", b"", r"a\.txt is empty"),
    ("a.jsonl", b'{"text": "a"}\nnot json\n', r"a\.jsonl, line 2: not JSON"),
    ("a.jsonl", b'{"body": "a", "id": 3}\n', r"line 1: text_key='text' names no string; found: body, id"),
    ("a.jsonl", b'{"text": 3}\n', r"names no string; found: text"),
    ("a.jsonl", b"[1]\n", r"found: no object"),
    ("a.jsonl", b'{"text": "\\ud83d"}\n', r"line 1: 'text' holds half of a surrogate pair"),
])
def test_bad_files_are_named_in_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value)


def test_missing_and_unsuitable_places(tmp_path):
    with pytest.raises(ValueError, match="does not exist; give a text file"):
        read(tmp_path / "none")
    with pytest.raises(ValueError, match=r"has no file named .*\.jsonl.*rename"):
        read(tmp_path)
