"""Long text cut to a length, with the place of the whole of it, or to the line that matters."""

import re

_TELLING = re.compile(r"\b(error|fatal|ld): |No space left on device", re.IGNORECASE)
# of the compiler's driver and of ninja: that a part of them failed
_SUMMARY = re.compile(r"collect2: |ninja: build stopped|FAILED: ")


def clipped(text: str, most: int, whole: str) -> str:
    """*text* without its middle if it is longer than *most* characters.

    Args:
        whole: Where all of it is, for whoever reads the rest.
    """
    if len(text) <= most:
        return text
    half = most // 2
    left_out = f"{len(text) - 2 * half:,} of {len(text):,} characters left out; {whole}"
    return f"{text[:half]} … [{left_out}] … {text[-half:]}"


def telling_line(text: str) -> str:
    """The line of *text*, an error with a compiler's output in it, that says what is wrong.

    What stands before the output is kept. A text without such a line is returned as it is.
    """
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if _TELLING.search(line) and not _SUMMARY.match(line)]
    # the first line names what was built; it may hold the first line of the output as well
    if len(lines) < 2 or not telling:
        return text
    return telling[0] if telling[0] == lines[0] else f"{lines[0].partition(': ')[0]}: {telling[0]}"
