"""Text for people: units, parsing of quantities, terms and their colours."""
