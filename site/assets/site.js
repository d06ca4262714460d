// What the theme leaves out for readers who use a keyboard or a screen reader.
const tables = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0
    else target.removeAttribute("tabindex")
  }
})
document$.subscribe(() => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset__table table")) tables.observe(table)
  document.querySelectorAll(".md-code__nav").forEach((buttons, i) => buttons.setAttribute("aria-label", `Code ${i + 1}`))
})
