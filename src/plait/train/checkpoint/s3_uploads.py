"""Multipart uploads that dead writers have left on S3: listed and aborted with signed requests of our own.

obstore has no call for this. The signature is AWS's version 4, over an empty body.
"""

import datetime as dt
import hashlib
import hmac
import os
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from plait.train.checkpoint.stores import StoreFailed

_EMPTY = hashlib.sha256(b"").hexdigest()
_MOST_BYTES = 4 * 2**20


def abort_uploads(config: Mapping[str, str], bucket: str, prefix: str) -> int:
    """Aborts all pending multipart uploads under a prefix; returns how many there were.

    Raises:
        StoreFailed: The store does not answer as S3 does.
    """
    text = _request(config, "GET", bucket, "", {"prefix": prefix, "uploads": ""})
    try:
        # A document of the store that we write to, of bounded size; entities are refused before it is parsed.
        if b"<!" in text:
            raise StoreFailed("the list of uploads holds a document type, which S3 never sends")
        root = ET.fromstring(text)  # noqa: S314
    except ET.ParseError as error:
        raise StoreFailed(f"the list of uploads is no XML: {error}") from error
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    uploads = [
        (upload.findtext(f"{space}Key") or "", upload.findtext(f"{space}UploadId") or "")
        for upload in root.iter(f"{space}Upload")
    ]
    ours = [(key, number) for key, number in uploads if key.startswith(prefix)]
    for key, number in ours:
        _request(config, "DELETE", bucket, key, {"uploadId": number})
    return len(ours)


def _request(config: Mapping[str, str], method: str, bucket: str, key: str, query: Mapping[str, str]) -> bytes:
    region = config.get("region", "us-east-1")
    endpoint = config.get("endpoint") or f"https://s3.{region}.amazonaws.com"
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"}:
        raise StoreFailed(f"the endpoint {endpoint!r} is no HTTP address")
    path = quote(f"/{bucket}/{key}" if key else f"/{bucket}")
    words = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted(query.items()))
    headers = _signed(config, method, parts.netloc, path, query=words, region=region)
    request = urllib.request.Request(f"{endpoint}{path}?{words}", method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=30.0) as answer:  # noqa: S310
            return bytes(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        if method == "DELETE" and error.code == 404:
            return b""
        raise StoreFailed(f"{method} of uploads: HTTP {error.code}") from error
    except OSError as error:
        raise StoreFailed(f"{method} of uploads: {error}") from error


def _signed(config: Mapping[str, str], method: str, host: str, path: str, *, query: str, region: str) -> dict[str, str]:
    access = config.get("access_key_id") or os.environ.get("AWS_ACCESS_KEY_ID", "")
    secret = config.get("secret_access_key") or os.environ.get("AWS_SECRET_ACCESS_KEY", "")
    token = config.get("session_token") or os.environ.get("AWS_SESSION_TOKEN", "")
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": now}
    if token:
        headers["x-amz-security-token"] = token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{_EMPTY}"
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for word in (now[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return {name: value for name, value in headers.items() if name != "host"}
