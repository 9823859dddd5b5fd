// An agent in another language: it asks for a capital, asks again, and reports what it got.
const sample = JSON.parse(require("fs").readFileSync(0));
const messages = [{ role: "user", content: sample.input.question }];

async function ask() {
  const response = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${process.env.OPENAI_API_KEY}`,
      "content-type": "application/json",
    },
    body: JSON.stringify({ model: process.env.OPENAI_MODEL, messages, temperature: 0.7 }),
  });
  if (!response.ok) throw new Error(await response.text());
  messages.push((await response.json()).choices[0].message);
}

(async () => {
  await ask();
  messages.push({ role: "user", content: "Sure?" });
  await ask();
  console.log(JSON.stringify({ score: messages[3].content === "4" ? 1 : 0, turns: 2 }));
})();
