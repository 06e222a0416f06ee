"""Long text cut to a length, with the place of the whole of it."""


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
