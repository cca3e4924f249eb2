// What a server of S3 answers, the files of profiles, and the names of places: the first byte says
// which of them the others are.
#include "base/check.h"
#include "durable/aws_environment.h"
#include "durable/cold_place.h"
#include "durable/s3_answers.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {
namespace {

using durable::kS3KeyBytesMax;

void ReadObjects(std::string_view text) {
  const auto page = durable::ParseS3Objects(text);
  if (!page.ok()) return;
  for (const auto& object : page->objects) {
    UNREFT_CHECK(!object.key.empty() && object.key.size() <= kS3KeyBytesMax);
  }
}

void ReadUploads(std::string_view text) {
  const auto page = durable::ParseS3Uploads(text);
  if (!page.ok()) return;
  for (const auto& upload : page->uploads) {
    UNREFT_CHECK(!upload.key.empty() && upload.key.size() <= kS3KeyBytesMax);
    UNREFT_CHECK(!upload.id.empty() && upload.id.size() <= durable::kS3UploadIdBytesMax);
  }
}

void ReadPlace(std::string_view text) {
  const auto place = durable::ParseS3Place(text);
  if (!place.ok()) return;
  const auto again = durable::ParseS3Place(place->Text());
  UNREFT_CHECK(again.ok() && again->bucket == place->bucket && again->prefix == place->prefix);
  UNREFT_CHECK(durable::CheckColdPlace(text).ok());
}

}  // namespace

std::vector<std::string> Seeds() {
  return {
      "0<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>true"
      "</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents><Key>a&amp;b</Key>"
      "<Size>12</Size></Contents></ListBucketResult>",
      "1<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k"
      "</NextKeyMarker><Upload><Key>x</Key><UploadId>u</UploadId><Initiated>2026-11-28T09:19:50Z"
      "</Initiated></Upload></ListMultipartUploadsResult>",
      "2<ListPartsResult><Part><LastModified>2026-11-28T09:19:50.000Z</LastModified></Part>"
      "</ListPartsResult>",
      "3<CompleteMultipartUploadResult><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C>"
      "</CompleteMultipartUploadResult>",
      "4<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
      "5<?xml version=\"1.0\"?><!DOCTYPE e [<!ENTITY a \"b\">]><Error><Code>&a;SlowDown</Code>"
      "<Message><![CDATA[later]]></Message><Region>eu-west-1</Region></Error>",
      "6[default]\naws_access_key_id = a\n# b\n[profile other]\nregion=eu\n  nested = 1\n",
      "7s3://my.bucket-1//a/b_c/",
  };
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unreft;
  if (size == 0) return 0;
  const std::string_view text = fuzz::Bytes(data, size).substr(1);
  switch (data[0] & 7) {
    case 0:
      fuzz::ReadObjects(text);
      break;
    case 1:
      fuzz::ReadUploads(text);
      break;
    case 2:
      (void)durable::ParseS3Parts(text);
      break;
    case 3:
      (void)durable::ParseS3Completed(text);
      break;
    case 4:
      (void)durable::ParseS3UploadId(text);
      break;
    case 5:
      UNREFT_CHECK(durable::ParseS3Error(text).message.size() <= 500);
      break;
    case 6:
      for (const auto& [name, section] : durable::ParseAwsFile(text)) {
        UNREFT_CHECK(name.find('\n') == std::string::npos);
      }
      break;
    default:
      fuzz::ReadPlace(text);
  }
  return 0;
}
