"""What `ingest` is measured against: FastAPI, pydantic, and a SQLAlchemy session a request on asyncpg.

It checks the same token and the same fields, and answers after its commit. Its event loop and HTTP parser are
the fast ones (uvloop, httptools), its access log is off, and its pool is as large as the other variants'.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import fastapi
import jwt
import uvicorn
import uvloop
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from activity_platform.activity.vocabulary import ObjectType, Verb
from activity_platform.ingest.app import EVENTS_PATH
from activity_platform.settings import Settings
from benchmarks._models import ActivityEvent, with_driver

CONNECTIONS = 16


class Event(BaseModel):
    verb: Verb
    object_type: ObjectType
    object_id: str = Field(min_length=1, max_length=256)
    surface: str | None = Field(default=None, max_length=64)
    context: dict[str, Any] | None = None


class Submission(BaseModel):
    events: list[Event] = Field(max_length=100)


def create_app(settings: Settings) -> fastapi.FastAPI:
    engine = create_async_engine(
        with_driver(settings.database_url, "asyncpg"), pool_size=CONNECTIONS, max_overflow=0
    )
    sessions = async_sessionmaker(engine)
    bearer = HTTPBearer()

    async def user(credentials: Annotated[HTTPAuthorizationCredentials, fastapi.Depends(bearer)]) -> str:
        try:
            claims = jwt.decode(
                credentials.credentials, settings.jwt_secret, algorithms=[settings.jwt_algorithm]
            )
        except jwt.InvalidTokenError as error:
            raise fastapi.HTTPException(401) from error
        return str(claims["sub"])

    async def session() -> AsyncIterator[AsyncSession]:
        async with sessions() as opened:
            yield opened

    async def accept(
        submission: Submission,
        user_id: Annotated[str, fastapi.Depends(user)],
        opened: Annotated[AsyncSession, fastapi.Depends(session)],
    ) -> dict[str, int]:
        rows = [event.model_dump() | {"user_id": user_id} for event in submission.events]
        await opened.execute(insert(ActivityEvent), rows)
        await opened.commit()
        return {"accepted": len(rows)}

    app = fastapi.FastAPI()
    app.add_api_route(EVENTS_PATH, accept, methods=["POST"], status_code=202)
    return app


def serve(settings: Settings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serves until SIGTERM."""
    config = uvicorn.Config(create_app(settings), http="httptools", log_level="error")
    server = uvicorn.Server(config)

    async def ready() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(on_ready)

    async def both() -> None:
        await asyncio.gather(server.serve([listener]), ready())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(both())
