// S3ColdFile: a file under way of an S3ColdStore. Of that store's own files, for them alone.
//
// Bytes are gathered in a part's room; a file that fits in one is written by one request when it
// is finished, a longer one is a multipart upload.
#pragma once

#include <memory>
#include <string>

#include "durable/cold_store.h"
#include "durable/s3_client.h"

namespace unreft::durable {

// `client` outlives it. `part_bytes` is not 0; parts grow, as an upload has 10,000 at most.
std::unique_ptr<ColdFile> BeginS3ColdFile(S3Client& client, std::string key, uint64_t part_bytes);

}  // namespace unreft::durable
