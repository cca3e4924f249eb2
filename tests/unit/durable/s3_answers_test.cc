// What is read out of the XML of a server of S3, and what is refused.

#include "durable/s3_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/random.h"

namespace unreft::durable {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr char kObjects[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
    "<IsTruncated>true</IsTruncated><NextContinuationToken>a/+b=</NextContinuationToken>"
    "<Contents><Key>p/a&amp;b</Key><Size>12</Size></Contents>"
    "<Contents><Key>p/c</Key><Size>0</Size><Owner><ID>x</ID></Owner></Contents>"
    "</ListBucketResult>";
constexpr char kUploads[] =
    "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>"
    "<NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
    "<Upload><Key>p/x</Key><UploadId>id-1</UploadId><Initiated>2026-11-28T09:19:50.000Z</Initiated>"
    "</Upload></ListMultipartUploadsResult>";
constexpr char kParts[] =
    "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber>"
    "<LastModified>2026-11-28T09:19:50Z</LastModified></Part></ListPartsResult>";

std::string With(std::string text, std::string_view from, std::string_view to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(S3Answers, ReadsAPageOfObjects) {
  const auto page = ParseS3Objects(kObjects);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->objects.size(), 2U);
  EXPECT_EQ(page->objects[0].key, "p/a&b");
  EXPECT_EQ(page->objects[0].bytes, 12U);
  EXPECT_EQ(page->next, "a/+b=");
  EXPECT_EQ(ParseS3Objects("<ListBucketResult/>")->objects.size(), 0U);
}

TEST(S3Answers, ReadsUploadsAndParts) {
  const auto page = ParseS3Uploads(kUploads);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->uploads.size(), 1U);
  EXPECT_EQ(page->uploads[0].key, "p/x");
  EXPECT_EQ(page->uploads[0].id, "id-1");
  EXPECT_EQ(page->next_key, "k");
  EXPECT_EQ(page->next_id, "u");
  const auto parts = ParseS3Parts(kParts);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->written, std::vector{page->uploads[0].began});
  EXPECT_EQ(parts->next, "");
}

TEST(S3Answers, ReadsWhatCameOfAnUpload) {
  EXPECT_EQ(*ParseS3UploadId("<InitiateMultipartUploadResult><UploadId>u</UploadId>"
                             "</InitiateMultipartUploadResult>"),
            "u");
  EXPECT_EQ(*ParseS3Completed("\n \n<CompleteMultipartUploadResult><ChecksumCRC32C>AAAAAA=="
                              "</ChecksumCRC32C></CompleteMultipartUploadResult>"),
            "AAAAAA==");
  EXPECT_EQ(*ParseS3Completed("<CompleteMultipartUploadResult/>"), "");
}

// Servers that have said that all is well before they were done.
TEST(S3Answers, AnErrorInsteadOfAnAnswerIsTold) {
  const absl::Status status =
      ParseS3Completed("<Error><Code>InternalError</Code><Message>try again</Message></Error>")
          .status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "InternalError: try again");
}

TEST(S3Answers, RefusesWhatIsNotWhatWasAskedFor) {
  for (const std::string& text :
       {std::string(), std::string("hello"), std::string("<html></html>"), std::string(kUploads),
        std::string(kObjects, sizeof(kObjects) / 2), With(kObjects, "12", "many"),
        With(kObjects, "12", "-1"), With(kObjects, "12", "18446744073709551616"),
        With(kObjects, "p/c", ""), With(kObjects, "p/c", std::string(1025, 'k')),
        With(kObjects, ">true<", ">maybe<"), With(kObjects, "a/+b=", "")}) {
    EXPECT_EQ(ParseS3Objects(text).status().code(), StatusCode::kUnavailable) << text;
  }
  EXPECT_FALSE(ParseS3Uploads(With(kUploads, "id-1", "")).ok());
  EXPECT_FALSE(ParseS3Uploads(With(kUploads, "2026-11-28T09:19:50.000Z", "yesterday")).ok());
  EXPECT_FALSE(ParseS3Uploads(With(kUploads, ">k<", "><")).ok()) << "it would never end";
  EXPECT_FALSE(ParseS3Parts(With(kParts, "2026-11-28T09:19:50Z", "")).ok());
  EXPECT_FALSE(ParseS3UploadId("<InitiateMultipartUploadResult/>").ok());
}

TEST(S3Answers, NoEntityOfADocumentIsExpanded) {
  const S3Error error = ParseS3Error(
      "<!DOCTYPE e [<!ENTITY a \"aaaaaaaa\"><!ENTITY f SYSTEM \"file:///etc/passwd\">]>"
      "<Error><Code>&a;&f;</Code></Error>");
  EXPECT_EQ(error.code, "&a;&f;");
}

TEST(S3Answers, AnErrorIsCleanAndShort) {
  const S3Error error = ParseS3Error("<Error><Code>Some\x01thing</Code><Message>" +
                                     std::string(10'000, 'm') + "\n</Message></Error>");
  EXPECT_EQ(error.code, "Some\\x01thing");
  EXPECT_LE(error.message.size(), 500U);
  EXPECT_EQ(ParseS3Error("no xml").code, "");
  EXPECT_EQ(ParseS3Error("<html><Code>x</Code></html>").code, "");
}

TEST(S3Answers, DamagedTextHarmsNothing) {
  Random random(3);
  for (const std::string_view whole :
       {std::string_view(kObjects), std::string_view(kUploads), std::string_view(kParts)}) {
    for (int round = 0; round < 2000; ++round) {
      std::string text(
          whole.substr(0, random.OneIn(2) ? whole.size() : random.Below(whole.size())));
      for (uint64_t i = random.Below(4); i-- > 0 && !text.empty();) {
        text[random.Below(text.size())] = static_cast<char>(random.Below(256));
      }
      if (const auto page = ParseS3Objects(text); page.ok()) {
        for (const S3Object& object : page->objects) {
          EXPECT_FALSE(object.key.empty());
          EXPECT_LE(object.key.size(), kS3KeyBytesMax);
        }
      }
      (void)ParseS3Uploads(text);
      (void)ParseS3Parts(text);
      (void)ParseS3Error(text);
    }
  }
}

TEST(S3Answers, WhatCompletesAnUploadIsEscaped) {
  EXPECT_EQ(CompletionText({{.number = 1, .etag = "\"a<b\"", .crc32c = "AA=="}}),
            "<?xml version=\"1.0\"?><CompleteMultipartUpload "
            "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Part><PartNumber>1</PartNumber>"
            "<ETag>\"a&lt;b\"</ETag><ChecksumCRC32C>AA==</ChecksumCRC32C></Part>"
            "</CompleteMultipartUpload>");
}

}  // namespace
}  // namespace unreft::durable
