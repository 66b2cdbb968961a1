"use strict";
// Shows /openapi.json with Swagger UI. A token stays in the memory of this page: a reload forgets it.

function readable(key, value) {
  // Markdown joins wrapped lines. Swagger UI would break them.
  if (key === "description" && typeof value === "string") return value.replace(/([^\n])\n(?!\n)/g, "$1 ");
  // "Try it out" would send the examples of all parameters together.
  if (value?.in && !value.required && "example" in value) {
    const { example, ...parameter } = value;
    return { ...parameter, description: `${parameter.description} Example: \`${example}\`` };
  }
  return value;
}

fetch("/openapi.json")
  .then((answer) => answer.text())
  .then((text) =>
    SwaggerUIBundle({
      spec: JSON.parse(text, readable),
      dom_id: "#api",
      deepLinking: true,
      defaultModelsExpandDepth: 0,
      // No other server learns of this page.
      validatorUrl: null,
    }))
  .catch((error) => {
    document.getElementById("api").textContent = `openapi.json could not be shown: ${error}`;
  });
