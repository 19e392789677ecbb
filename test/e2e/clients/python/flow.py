"""A flow of LangChain over the gateway: texts are embedded and searched, what is found goes into a
prompt, and the model answers, in one piece, as a stream, and by calling a function."""

import os

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

MODEL = os.environ["MODEL"]
TEXTS = ["Oslo is the capital of Norway.", "Paris is the capital of France.", "Bread is made of flour."]

embeddings = OpenAIEmbeddings(model=MODEL, api_key="none", check_embedding_ctx_length=False)
store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
[found] = store.similarity_search(TEXTS[1], k=1)
assert found.page_content == TEXTS[1], found

chat = ChatOpenAI(model=MODEL, api_key="none", temperature=0, max_tokens=12, max_retries=0)
chain = ChatPromptTemplate.from_template("{context}\nWhat is the capital of France?") | chat | StrOutputParser()
whole = chain.invoke({"context": found.page_content})
streamed = "".join(chain.stream({"context": found.page_content}))
assert whole and streamed == whole, (whole, streamed)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return "sunny in " + city


asked = []
for city in ("London", "Rome", "Oslo", "Bern", "Kyiv", "Lima"):
    asked += [HumanMessage(f"What is the weather in {city}?"),
              AIMessage("", tool_calls=[{"name": "weather", "args": {"city": city}, "id": city}])]
caller = ChatOpenAI(model=MODEL, api_key="none", temperature=0, max_tokens=64, max_retries=0).bind_tools([weather], tool_choice="required")
answer = caller.invoke([*asked, HumanMessage("What is the weather in Paris?")])
[call] = answer.tool_calls
assert call["name"] == "weather" and weather.invoke(call["args"]).startswith("sunny in "), answer
print("ok")
