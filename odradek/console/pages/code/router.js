// Which page an address shows. The whole state of a page is its address, so it can be kept, sent and gone back to.

const ROUTES = [
  [/^\/$/, "cluster"],
  [/^\/brokers$/, "brokers"],
  [/^\/topics$/, "topics"],
  [/^\/topics\/([^/]+)$/, "topic"],
  [/^\/messages$/, "messages"],
  [/^\/groups$/, "groups"],
  [/^\/groups\/([^/]+)$/, "group"],
  [/^\/moves$/, "moves"],
  [/^\/transactions$/, "transactions"],
  [/^\/clients$/, "clients"],
  [/^\/access$/, "access"],
  [/^\/history$/, "history"],
  [/^\/login$/, "login"],
];

/** Return the module and the decoded parts of a path, or nothing if no page has it. */
export function pageOf(path) {
  for (const [pattern, name] of ROUTES) {
    const match = pattern.exec(path);
    if (match) return { name, parts: match.slice(1).map(decoded) };
  }
  return null;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    // A percent sign that somebody typed by hand: it means itself.
    return text;
  }
}

let arrive = () => undefined;

/** Call `arrived(where)` for each new address; `where` is "path" or "query" by what has changed. */
export function startRouter(arrived) {
  let path = location.pathname;
  arrive = () => {
    const same = location.pathname === path;
    path = location.pathname;
    arrived(same ? "query" : "path");
  };
  addEventListener("popstate", () => arrive());
  addEventListener("click", followLink);
  arrived("path");
}

function followLink(event) {
  const link = event.target.closest?.("a[href]");
  const plainClick = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plainClick || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !pageOf(url.pathname)) return;
  if (url.hash && url.pathname === location.pathname && url.search === location.search) return;
  event.preventDefault();
  go(url.pathname + url.search);
}

/** Show another address. */
export function go(url, { replace = false } = {}) {
  if (url === location.pathname + location.search) replace = true;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  arrive();
}

/** Return the parameters of the address. */
export const query = () => new URLSearchParams(location.search);

/** Return this address with some parameters changed; an empty value takes one away. */
export function addressWith(changes, path = location.pathname) {
  const params = query();
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") params.delete(name);
    else params.set(name, String(value));
  }
  const text = params.toString();
  return text ? `${path}?${text}` : path;
}

/** Change parameters of this address. What is typed letter by letter replaces the entry of the history. */
export function setQuery(changes, options) {
  go(addressWith(changes), options);
}
