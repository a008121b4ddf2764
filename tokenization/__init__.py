"""Raw text -> a byte-level BPE tokenizer, and a report on how good it is."""

from .arguments import TokenizerArguments
from .bpe import check_extension, check_options, extend_tokenizer, train_bpe
from .files import check_output_dir, load_or_train, load_tokenizer, save_tokenizer, tokenizer_fingerprint, train_once
from .patterns import SPECIAL_TOKENS, adapt_tokenizer, pattern_of
from .sampling import Sample, sample_documents
from .vocabulary import compression_report, describe_report, peak_memory, token_byte_lengths, token_facts, torn_warning
