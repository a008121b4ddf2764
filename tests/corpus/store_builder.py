"""A program that builds a store: TOKENIZER DATA OUTPUT_DIR PIECE_BYTES NUM_WORKERS [MOST_BYTES], of any file."""

import resource
import sys

from tokenizers import Tokenizer

from lacuna.corpus import TextArguments, open_text, prepare_store
from lacuna.corpus.store import build


class Fast:
    """As much of a tokenizer as a store asks for."""

    backend_tokenizer = Tokenizer.from_file(sys.argv[1])

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()


def main(data: str, output_dir: str, piece_bytes: str, num_workers: str, *limit: str) -> None:
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), int(limit[0])))
    build.PIECE_BYTES = int(piece_bytes)
    text = open_text(TextArguments(data=[data], document_boundary="line"))
    options = {"output_dir": output_dir, "num_workers": int(num_workers)}
    try:
        prepare_store(text=text, tokenizer=Fast(), tokenizer_fingerprint="t1", **options)
    except Exception as error:
        print(type(error).__name__, error, file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 99))


if __name__ == "__main__":
    main(*sys.argv[2:])
