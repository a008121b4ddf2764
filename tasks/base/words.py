"""What a word is, in any script: letters and digits, with the marks and joiners that belong to them.

To `\\w` of the standard library a vowel sign of Hindi or a point of Hebrew is no part of a word, and neither is the
diaeresis of a "u" that stands in the text as two characters: it takes such words apart.
"""

import regex

_LETTERS = r"\p{L}\p{N}_"  # what is \w to `re`

_MARKS = r"\p{M}\u200c\u200d"  # on and between letters: vowel signs, viramas, accents, the two joiners

_BLANKS = r"\s\x1c-\x1f"  # what is \s to `re`, and what `str.split` parts a text at

_WORD = rf"[{_LETTERS}][{_LETTERS}{_MARKS}]*+"

WORDS = regex.compile(_WORD)

"""Words alone; "_" is a letter, as for `re`."""

TOKENS = regex.compile(rf"{_WORD}://[^{_BLANKS}]+|[@#]?{_WORD}(?:[-'’]{_WORD})*|[^{_LETTERS}{_BLANKS}][{_MARKS}]*")

"""Words and signs of a text, as collections of tagged sentences part them; addresses, @names and #topics whole."""
