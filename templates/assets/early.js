// Runs before a long page is parsed: says that there is JavaScript, so that nothing is laid out that will not be shown.
document.documentElement.classList.add("js");
