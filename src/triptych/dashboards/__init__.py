"""From figures, texts and pages to every configured logger; the run's own report."""
