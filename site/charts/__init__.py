"""Chart specifications, one file a chart family. Data is passed to them by name in the browser."""
