// As much of a DOM as the renderer needs, and no more: what it does not use cannot be called by accident.

class Node {
  constructor(ownerDocument, nodeName, nodeType) {
    Object.assign(this, { ownerDocument, nodeName, nodeType, parentNode: null, childNodes: [], attributes: [] });
  }

  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }

  appendChild(node) {
    node.parentNode?.removeChild(node);
    node.parentNode = this;
    this.childNodes.push(node);
    return node;
  }

  removeChild(node) {
    this.childNodes.splice(this.#index(node), 1);
    node.parentNode = null;
  }

  replaceChild(node, old) {
    const at = this.#index(old);
    node.parentNode?.removeChild(node);
    this.childNodes[at] = node;
    node.parentNode = this;
    old.parentNode = null;
  }

  #index(node) {
    const at = this.childNodes.indexOf(node);
    if (at < 0) throw new Error(`${node.nodeName} is no child of ${this.nodeName}`);
    return at;
  }

  getAttribute(name) {
    return this.attributes.find((a) => a.name === name)?.value ?? null;
  }

  hasAttribute(name) {
    return this.attributes.some((a) => a.name === name);
  }

  setAttribute(name, value) {
    this.removeAttribute(name);
    this.attributes.push({ name, value: String(value) });
  }

  removeAttribute(name) {
    this.attributes = this.attributes.filter((a) => a.name !== name);
  }

  appendData(text) {
    this.data += text;
  }
}

export function fakeDocument() {
  const doc = {
    createElement: (name) => new Node(doc, name.toUpperCase(), 1),
    createTextNode: (data) => Object.assign(new Node(doc, "#text", 3), { data }),
  };
  return doc;
}

/** What the tree would be as HTML, attributes in order of their names. */
export function html(node) {
  const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
  if (node.nodeType === 3) return escape(node.data);
  const name = node.nodeName.toLowerCase();
  const attributes = [...node.attributes].sort((a, b) => (a.name < b.name ? -1 : 1));
  const inside = node.childNodes.map(html).join("");
  return `<${name}${attributes.map((a) => ` ${a.name}="${escape(a.value)}"`).join("")}>${inside}</${name}>`;
}

/** Every element below `node`. */
export function elements(node) {
  return node.childNodes.flatMap((child) => (child.nodeType === 1 ? [child, ...elements(child)] : []));
}

/** The text below `node`. */
export function text(node) {
  return node.nodeType === 3 ? node.data : node.childNodes.map(text).join("");
}
