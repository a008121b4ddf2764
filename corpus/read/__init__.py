"""Text in any format -> documents, and labelled rows."""
