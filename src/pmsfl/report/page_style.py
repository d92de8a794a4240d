"""The frame of a page: style sheet, tooltips, and the HTML around the charts. Nothing is loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pmsfl.report.page_svg import escape

# Okabe and Ito's palette, darker on white and lighter on black so that every line keeps its contrast.
_LIGHT = """
--bg:#f4f5f6;--card:#fff;--ink:#1a1f24;--soft:#57616b;--grid:#e6e9ec;--base:#aab2ba;--edge:#e1e4e8;--empty:#f3f4f6;
--c0:#0072b2;--c1:#d55e00;--c2:#00916a;--c3:#b4518c;--c4:#8f7000;--c5:#3f97d1;--c6:#5f6770;--c7:#7440a8;
--heat:#0b5fa5;--over:#fff;--mark:#d55e00;
"""
_DARK = """
--bg:#121518;--card:#1a1e22;--ink:#e6e9ec;--soft:#9aa5b0;--grid:#2a3036;--base:#56606a;--edge:#2a3036;--empty:#20252a;
--c0:#4ea8de;--c1:#ff9149;--c2:#35c69a;--c3:#e596c8;--c4:#dfc03a;--c5:#9ad0f5;--c6:#b4bcc4;--c7:#b794e6;
--heat:#6cbcf2;--over:#0d1a25;--mark:#ff9149;
"""
_RULES = """
*{box-sizing:border-box}
html{color-scheme:light dark}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:17px;margin:34px 0 12px}
h3{font-size:15px;margin:0 0 2px}
p{margin:0 0 8px}
.soft,.card>p,footer{color:var(--soft);font-size:13.5px}
.tag{display:inline-block;border:1px solid var(--base);border-radius:99px;padding:0 9px;
font-size:12.5px;margin-left:8px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:20px 0 4px}
.tile,.card{background:var(--card);border:1px solid var(--edge);border-radius:10px}
.tile{padding:12px 16px}
.tile b{display:block;white-space:nowrap;
font-size:24px;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}
.tile span{display:block;color:var(--soft);font-size:13px;line-height:1.4}
.grid{display:grid;grid-template-columns:1fr 1fr;gap:14px}
.grid>*{min-width:0}
.card{padding:16px 18px 14px}
.wide{grid-column:1/-1}
.scroll{overflow-x:auto}
.tall{max-height:420px;overflow:auto;border-top:1px solid var(--edge)}
svg.chart{display:block;width:100%;height:auto;margin-top:8px;overflow:visible}
.scroll>svg.chart{min-width:430px}
.wide .scroll>svg.chart{min-width:780px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--edge);vertical-align:top}
th{color:var(--soft);font-weight:500;white-space:nowrap}
thead th{position:sticky;top:0;background:var(--card)}
.n{text-align:right;white-space:nowrap}
.set td{font-weight:600}
code{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
details{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:12px 18px;margin-top:14px}
summary{cursor:pointer;font-weight:600}
details h3{margin:18px 0 4px}
footer{margin-top:28px}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;fill:var(--ink)}
svg text.tick,svg text.axis{fill:var(--soft)}
svg text.cell{font-size:10px}svg text.over{fill:var(--over)}
svg text.strong{font-weight:600}
.grid line.grid,line.grid{stroke:var(--grid)}line.base{stroke:var(--base)}
line.mean{stroke:var(--ink);stroke-dasharray:5 4}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.line.strong{stroke-width:2.8}
.dot{fill:var(--c);stroke:var(--card);stroke-width:1}
.band{fill:var(--c);opacity:.15}
.leader{fill:none;stroke:var(--c);stroke-width:1.2;stroke-dasharray:2 2}
.fill{fill:var(--c)}.fill.mark{fill:var(--mark)}
.heat{fill:var(--heat)}.blank{fill:var(--empty)}
.area{fill:transparent}
.rule{stroke:var(--base);opacity:0}.hover:hover .rule{opacity:1}
.hover:hover .area{fill:var(--ink);fill-opacity:.07}
#tip{position:fixed;z-index:9;pointer-events:none;white-space:pre-line;background:var(--ink);color:var(--card);
font-size:12.5px;line-height:1.45;padding:6px 10px;border-radius:6px;max-width:340px}
@media (max-width:900px){.grid{grid-template-columns:1fr}}
@media print{body{background:#fff;font-size:12px}main{max-width:none;padding:0}.tile,.card,details{break-inside:avoid}
.tall{max-height:none}.scroll>svg.chart,.wide .scroll>svg.chart{min-width:0}.card.long{break-inside:auto}
#tip{display:none}.tiles{grid-template-columns:repeat(3,1fr)}h2{break-after:avoid}}
"""
_SHADES = (8, 17, 27, 37, 47, 58, 69, 79, 90, 100)  # per cent of the heat colour
_DASHES = ("7 4", "2 4", "9 3 2 3")

# Tooltips at once and in the page's own style; without the script the browser shows the same texts a little later.
_SCRIPT = """
(function(){
var tip=document.createElement('div'),held=null,text='';tip.id='tip';tip.hidden=true;document.body.appendChild(tip);
function release(){if(held){held.textContent=text;held=null;tip.hidden=true}}
document.addEventListener('pointerover',function(e){
release();var t=e.target.querySelector&&e.target.closest('svg')&&e.target.querySelector(':scope>title');
if(!t||e.target.tagName==='svg')return;held=t;text=t.textContent;t.textContent='';tip.textContent=text;tip.hidden=false});
document.addEventListener('pointermove',function(e){if(!held)return;
var x=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8),y=e.clientY+16;
if(y+tip.offsetHeight>innerHeight-8)y=e.clientY-tip.offsetHeight-10;tip.style.left=x+'px';tip.style.top=y+'px'});
document.addEventListener('pointerleave',release);
})();
"""


def style_sheet() -> str:
    """All rules: light for paper and by default, dark where a screen prefers it."""
    colours = "".join(f".c{i}{{--c:var(--c{i})}}" for i in range(8))
    shades = "".join(f".h{i + 1}{{opacity:{share / 100:g}}}" for i, share in enumerate(_SHADES))
    dashes = "".join(f".line.dash{i + 1}{{stroke-dasharray:{dash}}}" for i, dash in enumerate(_DASHES))
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    return f":root{{{_LIGHT}}}{dark}{_RULES}{colours}{shades}{dashes}"


def document(title: str, body: Iterable[str]) -> str:
    """A whole page. The policy in its head makes sure that it loads nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>\n<style>{style_sheet()}</style>\n</head>\n<body>\n<main>",
            *body,
            f"</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n",
        )
    )


def card(title: str, about: str, content: str, name: str, wide: bool = False, long: bool = False) -> str:
    """A chart or a table under its title; `name` is where links and tests find it."""
    css = f"card{' wide' if wide else ''}{' long' if long else ''}"
    told = f"<p>{escape(about)}</p>" if about else ""
    inside = f'<div class="scroll">{content}</div>' if content else ""
    return f'<section class="{css}" id="{escape(name)}"><h3>{escape(title)}</h3>{told}{inside}</section>'


def grid(cards: Iterable[str]) -> str:
    """Cards side by side where there is room."""
    return f'<div class="grid">{"".join(cards)}</div>'


def tiles(items: Iterable[tuple[str, str, str]]) -> str:
    """Headline figures: what, how much, and what to know about it."""
    made = (
        f'<div class="tile"><span>{escape(what)}</span><b>{escape(value)}</b><span>{escape(about)}</span></div>'
        for what, value, about in items
    )
    return f'<div class="tiles">{"".join(made)}</div>'


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()) -> str:
    """A table; the columns in `numbers` are aligned to the right."""
    right = set(numbers)
    css = [' class="n"' if i in right else "" for i in range(len(headers))]
    head = "".join(f'<th scope="col"{css[i]}>{escape(h)}</th>' for i, h in enumerate(headers))
    body = "".join(
        f"<tr>{''.join(f'<td{css[i]}>{escape(cell)}</td>' for i, cell in enumerate(row))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
