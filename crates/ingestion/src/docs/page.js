"use strict";
// Shows /openapi.json. Text is only ever set as text, never as markup.

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function paragraphs(text) {
  return (text ?? "").split("\n\n").filter(Boolean).map((part) => make("p", {}, part));
}

function schemaName(schema) {
  if (!schema) return null;
  if (schema.$ref) return schema.$ref.split("/").pop();
  for (const key of ["oneOf", "anyOf", "allOf"]) {
    const names = (schema[key] ?? []).map(schemaName).filter(Boolean);
    if (names.length) return names.join(key === "allOf" ? " and " : " or ");
  }
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array" || schema.type?.includes?.("array")) return `list of ${schemaName(schema.items)}`;
  const type = [].concat(schema.type ?? "any").join(" or ");
  return schema.format ? `${type} (${schema.format})` : type;
}

function link(schema) {
  const name = schemaName(schema) ?? "any";
  return schema?.$ref ? make("a", { href: `#schema-${name}` }, name) : make("span", {}, name);
}

function example(value) {
  if (value === undefined) return null;
  return make("pre", {}, typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

function table(headings, rows) {
  if (!rows.length) return null;
  const head = make("tr", {}, ...headings.map((heading) => make("th", {}, heading)));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell ?? ""))));
  return make("div", { class: "scroll" }, make("table", {}, head, ...body));
}

function contents(content) {
  return Object.entries(content ?? {}).flatMap(([type, { schema, example: shown }]) => [
    make("p", { class: "soft" }, make("code", {}, type), " · ", link(schema)),
    example(shown),
  ]);
}

function curl(method, path, operation) {
  const address = location.origin + path.replace("{id}", "order-17").replace("{kind}", "invalid-values");
  const body = Object.entries(operation.requestBody?.content ?? {})[0];
  const verb = ["delete", "patch", "put"].includes(method) ? `-X ${method.toUpperCase()} ` : "";
  if (!body) return method === "post" ? `curl -i -X POST '${address}'` : `curl -i ${verb}'${address}'`;
  const [type, { example: shown }] = body;
  const text = typeof shown === "string" ? shown : JSON.stringify(shown);
  return `curl -i ${verb}'${address}' -H 'content-type: ${type}' --data-binary '${text}'`;
}

function operationView(path, method, operation) {
  const parameters = (operation.parameters ?? []).map((parameter) => [
    make("code", {}, parameter.name), parameter.in, parameter.description ?? "",
    make("code", {}, String(parameter.example ?? "")),
  ]);
  const responses = Object.entries(operation.responses ?? {})
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([status, response]) =>
      make("details", {},
        make("summary", {}, make("code", { class: status < "400" ? "get" : "bad" }, status), response.description),
        table(["Header", "Meaning"], Object.entries(response.headers ?? {})
          .map(([name, header]) => [make("code", {}, name), header.description])),
        ...contents(response.content)));
  return make("details", { id: operation.operationId },
    make("summary", {}, make("span", { class: `method ${method}` }, method.toUpperCase()),
      make("code", {}, path), make("span", { class: "soft" }, operation.summary ?? "")),
    ...paragraphs(operation.description),
    ...(operation.security ?? []).map(({ bearer }) =>
      make("p", { class: "soft" }, "Scope, where tokens are asked for: ", make("code", {}, bearer.join(" ")))),
    parameters.length ? make("h3", {}, "Parameters") : null,
    table(["Name", "In", "Meaning", "Example"], parameters),
    operation.requestBody ? make("h3", {}, "Body") : null,
    ...contents(operation.requestBody?.content),
    make("h3", {}, "Try it"), make("pre", {}, curl(method, path, operation)),
    make("h3", {}, "Answers"), ...responses);
}

function properties(schema) {
  const own = Object.entries(schema.properties ?? {}).map(([name, property]) => [
    make("code", {}, name), link(property),
    (schema.required ?? []).includes(name) ? "required" : "", property.description ?? "",
  ]);
  return (schema.allOf ?? []).filter((part) => part.properties).flatMap(properties).concat(own);
}

function schemaView(name, schema) {
  const parents = (schema.allOf ?? []).filter((part) => part.$ref).map(link);
  return make("details", { id: `schema-${name}` },
    make("summary", {}, make("code", {}, name)),
    ...paragraphs(schema.description),
    parents.length ? make("p", {}, "Everything of ", ...parents, ", and:") : null,
    schema.enum ? make("p", {}, make("code", {}, schema.enum.join(" | "))) : null,
    table(["Field", "Type", "", "Meaning"], properties(schema)));
}

function show(api) {
  const page = document.getElementById("page");
  const operations = Object.entries(api.paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) => ({ path, method, operation })));
  page.replaceChildren(
    make("h1", {}, `${api.info.title} API `, make("span", { class: "soft" }, api.info.version)),
    ...paragraphs(api.info.description),
    make("p", {}, make("a", { href: "/openapi.json" }, "openapi.json"), ` (OpenAPI ${api.openapi})`),
    ...(api.tags ?? []).flatMap((tag) => [
      make("h2", {}, tag.name), ...paragraphs(tag.description),
      ...operations.filter(({ operation }) => operation.tags?.includes(tag.name))
        .map(({ path, method, operation }) => operationView(path, method, operation)),
    ]),
    make("h2", {}, "Schemas"),
    ...Object.entries(api.components?.schemas ?? {}).map(([name, schema]) => schemaView(name, schema)));
  open();
}

// A link to a part opens it.
function open() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  target.setAttribute("open", "");
  target.scrollIntoView();
}

window.addEventListener("hashchange", open);
fetch("/openapi.json").then((answer) => answer.json()).then(show).catch((error) => {
  document.getElementById("waiting").textContent = `openapi.json could not be read: ${error}`;
});
