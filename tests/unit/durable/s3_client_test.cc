// What an S3ColdStore asks, again and again where that helps, and what it makes of the answers.

#include "durable/s3_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "durable/s3_cold_store.h"
#include "tests/unit/durable/s3_testing.h"

namespace unreft::durable {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

AwsEnvironment Environment() {
  return FakeEnvironment({{"AWS_ENDPOINT_URL", "http://store:9000"},
                          {"AWS_ACCESS_KEY_ID", "id"},
                          {"AWS_SECRET_ACCESS_KEY", "hidden"}});
}

class S3ClientTest : public testing::Test {
 protected:
  S3ClientTest() { pace_.attempts = 4; }

  S3Client& client() {
    if (client_ == nullptr) {
      pace_.pause = [this](Duration duration) {
        pauses_.push_back(duration);
        return !is_ending_;
      };
      client_ = std::make_unique<S3Client>(S3Place{.bucket = "bucket", .prefix = "p"}, settings_,
                                           sender_, credentials_, pace_, Random(1));
    }
    return *client_;
  }
  absl::Status Put(std::string_view bytes = "bytes") {
    return client().Put("p/a", BytesOf(bytes), Crc32c(BytesOf(bytes)), "me");
  }

  FakeSender sender_;
  S3Settings settings_{.endpoint = "http://store:9000", .region = "us-east-1", .ca_file = ""};
  S3Credentials credentials_{Environment(), sender_, std::chrono::system_clock::now};
  S3Pace pace_;
  std::vector<Duration> pauses_;
  bool is_ending_ = false;
  std::unique_ptr<S3Client> client_;
};

TEST_F(S3ClientTest, AChecksumIsWrittenAsS3DoesIt) {
  // The check value of CRC32C is e3069283.
  EXPECT_EQ(S3Checksum(Crc32c(BytesOf("123456789"))), "4waSgw==");
}

TEST_F(S3ClientTest, WhatIsWrittenTakesNoNameOver) {
  sender_.Next(Said(200));
  EXPECT_TRUE(Put("123456789").ok());
  ASSERT_EQ(sender_.sent().size(), 1U);
  const SentRequest sent = sender_.sent()[0];
  EXPECT_EQ(sent.method, "PUT");
  EXPECT_EQ(sent.url, "http://store:9000/bucket/p/a");
  EXPECT_EQ(sent.body, "123456789");
  EXPECT_EQ(sent.key_id, "id");
  EXPECT_EQ(sent.headers.at("if-none-match"), "*");
  EXPECT_EQ(sent.headers.at("x-amz-checksum-crc32c"), "4waSgw==");
  sender_.Next(SaidError(412, "PreconditionFailed"));
  const absl::Status taken = Put();
  EXPECT_EQ(taken.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("'s3://bucket/p/a': it is there already"));
}

TEST_F(S3ClientTest, AddressesOfAws) {
  const auto url_of = [&](const std::string& region, const std::string& bucket) {
    FakeSender sender;
    sender.Next(Said(200));
    S3Client client({.bucket = bucket, .prefix = ""}, {.region = region}, sender, credentials_,
                    {.pause = [](Duration) { return false; }}, Random(1));
    (void)client.Delete("a/b");
    return sender.sent()[0].url;
  };
  EXPECT_EQ(url_of("eu-west-1", "b1-x"), "https://b1-x.s3.eu-west-1.amazonaws.com/a/b");
  EXPECT_EQ(url_of("eu-west-1", "b.x"), "https://s3.eu-west-1.amazonaws.com/b.x/a/b");
  EXPECT_EQ(url_of("cn-north-1", "b1-x"), "https://b1-x.s3.cn-north-1.amazonaws.com.cn/a/b");
}

TEST_F(S3ClientTest, WhatMayPassIsAskedAgainWithLongerPauses) {
  sender_.Next(absl::UnavailableError("no route"));
  sender_.Next(SaidError(503, "SlowDown"));
  sender_.Next(SaidError(400, "BadDigest"));
  sender_.Next(Said(200));
  EXPECT_TRUE(Put().ok());
  ASSERT_EQ(pauses_.size(), 3U);
  for (size_t i = 0; i < pauses_.size(); ++i) {
    EXPECT_GE(pauses_[i], milliseconds(100) * (1 << i));
    EXPECT_LE(pauses_[i], milliseconds(200) * (1 << i));
  }
}

TEST_F(S3ClientTest, NotForever) {
  pace_.attempts = 12;
  const absl::Status status = Put();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("write 's3://bucket/p/a'"), HasSubstr("nothing more is said"),
                    HasSubstr("12 attempts")));
  ASSERT_EQ(pauses_.size(), 11U);
  EXPECT_LE(pauses_.back(), seconds(5));
}

TEST_F(S3ClientTest, NothingIsAskedAgainWhenTheProcessIsToEnd) {
  is_ending_ = true;
  EXPECT_FALSE(Put().ok());
  EXPECT_EQ(sender_.sent().size(), 1U);
}

TEST_F(S3ClientTest, WhatIsForGoodIsNotAskedAgain) {
  const std::vector<std::pair<HttpAnswer, StatusCode>> meanings = {
      {SaidError(403, "AccessDenied"), StatusCode::kPermissionDenied},
      {SaidError(401, ""), StatusCode::kPermissionDenied},
      {SaidError(404, "NoSuchBucket"), StatusCode::kFailedPrecondition},
      {SaidError(404, "NoSuchKey"), StatusCode::kNotFound},
      {SaidError(400, "InvalidRequest"), StatusCode::kFailedPrecondition},
      {SaidError(501, "NotImplemented"), StatusCode::kFailedPrecondition},
      {SaidError(507, "XMinioStorageFull"), StatusCode::kResourceExhausted},
      {SaidError(403, "QuotaExceeded"), StatusCode::kResourceExhausted},
      {Said(301, "", {{"x-amz-bucket-region", "eu-west-1"}}), StatusCode::kFailedPrecondition},
  };
  for (const auto& [answer, code] : meanings) {
    const size_t before = sender_.sent().size();
    sender_.Next(answer);
    const absl::Status status = Put();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("s3://bucket/p/a"), HasSubstr(std::to_string(answer.status))));
    EXPECT_EQ(sender_.sent().size(), before + 1);
  }
  sender_.Next(Said(301, "", {{"x-amz-bucket-region", "eu-west-1"}}));
  EXPECT_THAT(std::string(Put().message()),
              HasSubstr("in region 'eu-west-1', needed it as AWS_REGION, found 'us-east-1'"));
  sender_.Next(absl::FailedPreconditionError("no such certificate"));
  EXPECT_EQ(Put().code(), StatusCode::kFailedPrecondition);
}

// The request whose answer was lost had been carried out.
TEST_F(S3ClientTest, OwnWriteIsKnownAgain) {
  sender_.Next(absl::UnavailableError("cut"));
  sender_.Next(SaidError(412, "PreconditionFailed"));
  sender_.Next(Said(200, "", {{"content-length", "5"}, {"x-amz-meta-unreft-writer", "me"}}));
  EXPECT_TRUE(Put().ok());
  sender_.Next(absl::UnavailableError("cut"));
  sender_.Next(SaidError(412, "PreconditionFailed"));
  sender_.Next(Said(200, "", {{"content-length", "5"}, {"x-amz-meta-unreft-writer", "other"}}));
  EXPECT_EQ(Put().code(), StatusCode::kAlreadyExists);
  // libcurl may have asked again by itself.
  sender_.Next(SaidError(412, "PreconditionFailed"));
  sender_.Next(Said(200, "", {{"content-length", "5"}, {"x-amz-meta-unreft-writer", "me"}}));
  EXPECT_TRUE(Put().ok());
  // And an upload that is completed is no upload any more.
  const auto complete = [&] { return client().CompleteUpload("p/a", "u", {}, 5, 0, "me"); };
  for (const char* const writer : {"me", "other"}) {
    sender_.Next(SaidError(500, "InternalError"));
    sender_.Next(SaidError(404, "NoSuchUpload"));
    sender_.Next(Said(200, "", {{"content-length", "5"}, {"x-amz-meta-unreft-writer", writer}}));
    EXPECT_EQ(complete().code(),
              writer == std::string("me") ? StatusCode::kOk : StatusCode::kAborted);
  }
  sender_.Next(SaidError(404, "NoSuchUpload"));
  EXPECT_EQ(complete().code(), StatusCode::kAborted);
  sender_.Next(SaidError(200, "InternalError"));
  sender_.Next(Said(200,
                    "<CompleteMultipartUploadResult><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C>"
                    "</CompleteMultipartUploadResult>"));
  EXPECT_TRUE(complete().ok());
  sender_.Next(Said(200,
                    "<CompleteMultipartUploadResult><ChecksumCRC32C>BBBBBB==</ChecksumCRC32C>"
                    "</CompleteMultipartUploadResult>"));
  EXPECT_EQ(complete().code(), StatusCode::kDataLoss);
}

TEST_F(S3ClientTest, AnotherChecksumThanWhatWasSentIsNotTaken) {
  const HttpAnswer other = Said(200, "", {{"x-amz-checksum-crc32c", "AAAAAA=="}, {"etag", "e"}});
  sender_.Next(other);
  const absl::Status status = Put();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("stored bytes of CRC32C AAAAAA=="));
  EXPECT_EQ(sender_.sent().size(), 1U) << "it would take itself for who has the name";
  // A part is written over.
  sender_.Next(other);
  sender_.Next(Said(200, "", {{"x-amz-checksum-crc32c", "4waSgw=="}, {"etag", "e"}}));
  const auto part =
      client().PutPart("p/a", "u", 1, BytesOf("123456789"), Crc32c(BytesOf("123456789")));
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->crc32c, "4waSgw==");
}

TEST_F(S3ClientTest, ReadsAndChecksWhatItReads) {
  sender_.Next(Said(200, "123456789", {{"x-amz-checksum-crc32c", "4waSgw=="}}));
  EXPECT_EQ(*client().Get("p/a", 9), "123456789");
  // Damaged on the way, and then where it lies.
  sender_.Next(Said(200, "12345678X", {{"x-amz-checksum-crc32c", "4waSgw=="}}));
  sender_.Next(Said(200, "123456789", {{"x-amz-checksum-crc32c", "4waSgw=="}}));
  EXPECT_EQ(*client().Get("p/a", 9), "123456789");
  for (int i = 0; i < 3; ++i) {
    sender_.Next(Said(200, "12345678X", {{"x-amz-checksum-crc32c", "4waSgw=="}}));
  }
  EXPECT_EQ(*client().Get("p/a", 9), "12345678X") << "its reader has a checksum of its own";
  sender_.Next(Said(200, "12345678X", {{"x-amz-checksum-crc32c", "4waSgw==-2"}}));
  EXPECT_TRUE(client().Get("p/a", 9).ok()) << "the checksum is of the parts' checksums";
  sender_.Next(Said(200, "123456789"));
  const absl::Status large = client().Get("p/a", 8).status();
  EXPECT_EQ(large.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(large.message()), HasSubstr("9 bytes"));
  sender_.Next(SaidError(404, "NoSuchKey"));
  EXPECT_EQ(client().Get("p/a", 8).status().code(), StatusCode::kNotFound);
}

TEST_F(S3ClientTest, ARangeIsWhatWasAskedFor) {
  std::string into(4, '?');
  const auto read = [&] {
    return client().Read("p/a", 2, std::as_writable_bytes(std::span(into)));
  };
  sender_.Next(Said(206, "2345", {{"content-range", "bytes 2-5/10"}}));
  EXPECT_TRUE(read().ok());
  EXPECT_EQ(into, "2345");
  EXPECT_EQ(sender_.sent().back().headers.at("range"), "bytes=2-5");
  // Of another range, all of it, or more than was asked for.
  sender_.Next(Said(206, "0123", {{"content-range", "bytes 0-3/10"}}));
  sender_.Next(Said(200, "0123456789"));
  sender_.Next(Said(206, "23456", {{"content-range", "bytes 2-6/10"}}));
  sender_.Next(Said(206, "2345", {{"content-range", "bytes 2-5/10"}}));
  EXPECT_TRUE(read().ok());
  sender_.Next(Said(206, "23", {{"content-range", "bytes 2-3/4"}}));
  sender_.Next(Said(200, "", {{"content-length", "4"}}));
  const absl::Status beyond = read();
  EXPECT_EQ(beyond.code(), StatusCode::kOutOfRange) << beyond;
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("4 bytes at 2 of an object of 4 bytes"));
  sender_.Next(SaidError(416, "InvalidRange"));
  sender_.Next(Said(200, "", {{"content-length", "1"}}));
  EXPECT_EQ(read().code(), StatusCode::kOutOfRange);
}

TEST_F(S3ClientTest, CredentialsThatExpiredAreReadAgain) {
  sender_.Next(SaidError(400, "ExpiredToken"));
  sender_.Next(Said(200));
  EXPECT_TRUE(Put().ok());
  sender_.Next(SaidError(400, "ExpiredToken"));
  sender_.Next(SaidError(400, "ExpiredToken"));
  EXPECT_FALSE(Put().ok());
}

S3ColdOptions OptionsOver(FakeSender& sender) {
  S3ColdOptions options;
  options.pace.pause = [](Duration) { return true; };
  options.pace.attempts = 2;
  options.environment = Environment();
  options.now = std::chrono::system_clock::now;
  options.part_bytes = 4;
  class Forwarding : public HttpSender {
   public:
    explicit Forwarding(FakeSender& to) : to_(to) {}
    absl::StatusOr<HttpAnswer> Send(const HttpRequest& request) override {
      return to_.Send(request);
    }

   private:
    FakeSender& to_;
  };
  options.sender = [&sender](const S3Settings&) { return std::make_unique<Forwarding>(sender); };
  return options;
}

std::unique_ptr<S3ColdStore> OpenOver(FakeSender& sender) {
  sender.Next(Said(200, "<ListBucketResult/>"));
  auto store =
      S3ColdStore::Open({.bucket = "bucket", .prefix = "p"}, OptionsOver(sender), Random(1));
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

TEST(S3ColdStoreOverAFake, ALongFileIsAnUploadOfPartsAndTheirChecksums) {
  FakeSender sender;
  auto store = OpenOver(sender);
  sender.Next(Said(200, "<ListBucketResult/>"));
  sender.Next(Said(404));
  auto file = store->Create("long");
  ASSERT_TRUE(file.ok()) << file.status();
  sender.Next(Said(200,
                   "<InitiateMultipartUploadResult><UploadId>up</UploadId>"
                   "</InitiateMultipartUploadResult>"));
  for (const char* const etag : {"\"e1\"", "\"e2\"", "\"e3\""}) {
    sender.Next(Said(200, "", {{"etag", etag}}));
  }
  sender.Next(Said(200, "<CompleteMultipartUploadResult/>"));
  ASSERT_TRUE((*file)->Append(BytesOf("123456789")).ok());
  const absl::Status finished = (*file)->Finish();
  ASSERT_TRUE(finished.ok()) << finished;
  file->reset();
  const auto sent = sender.sent();
  ASSERT_EQ(sent.size(), 8U);
  EXPECT_EQ(sent[4].body, "1234");
  EXPECT_EQ(sent[6].body, "9");
  EXPECT_EQ(sent[6].query.at("partNumber"), "3");
  EXPECT_EQ(sent[7].query.at("uploadId"), "up");
  EXPECT_EQ(sent[7].headers.at("x-amz-checksum-crc32c"), "4waSgw==") << "of the whole";
  EXPECT_EQ(sent[7].headers.at("x-amz-checksum-type"), "FULL_OBJECT");
  EXPECT_EQ(sent[7].headers.at("if-none-match"), "*");
  EXPECT_THAT(sent[7].body, AllOf(HasSubstr("<PartNumber>3</PartNumber>"), HasSubstr("\"e3\"")));
}

TEST(S3ColdStoreOverAFake, WhatFailedStaysFailedAndIsGivenUp) {
  FakeSender sender;
  auto store = OpenOver(sender);
  sender.Next(Said(200, "<ListBucketResult/>"));
  sender.Next(Said(404));
  auto file = store->Create("long");
  sender.Next(Said(200,
                   "<InitiateMultipartUploadResult><UploadId>up</UploadId>"
                   "</InitiateMultipartUploadResult>"));
  sender.Next(SaidError(403, "AccessDenied"));
  const absl::Status status = (*file)->Append(BytesOf("12345"));
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  const size_t before = sender.sent().size();
  EXPECT_EQ((*file)->Append(BytesOf("6")), status);
  EXPECT_EQ((*file)->Finish(), status);
  EXPECT_EQ(sender.sent().size(), before);
  sender.Next(Said(204));
  file->reset();
  EXPECT_EQ(sender.sent().back().method, "DELETE");
  EXPECT_EQ(sender.sent().back().query.at("uploadId"), "up");
}

TEST(S3ColdStoreOverAFake, WhatTheBucketHasOfOthersIsNotListed) {
  FakeSender sender;
  auto store = OpenOver(sender);
  sender.Next(Said(200,
                   "<ListBucketResult><IsTruncated>true</IsTruncated>"
                   "<NextContinuationToken>n</NextContinuationToken>"
                   "<Contents><Key>p/b</Key><Size>1</Size></Contents>"
                   "<Contents><Key>p/</Key><Size>0</Size></Contents>"
                   "<Contents><Key>p/a name</Key><Size>0</Size></Contents>"
                   "<Contents><Key>elsewhere/a</Key><Size>0</Size></Contents>"
                   "<Contents><Key>p/../a</Key><Size>0</Size></Contents></ListBucketResult>"));
  sender.Next(Said(200,
                   "<ListBucketResult><Contents><Key>p/a</Key><Size>2</Size></Contents>"
                   "</ListBucketResult>"));
  const auto entries = store->List("");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(*entries, (std::vector<ColdEntry>{{"a", 2}, {"b", 1}}));
  EXPECT_EQ(sender.sent().back().query.at("continuation-token"), "n");
  EXPECT_EQ(sender.sent().back().query.at("prefix"), "p/");
}

TEST(S3ColdStoreOverAFake, AnUploadThatIsStillWrittenToIsAlive) {
  FakeSender sender;
  auto store = OpenOver(sender);
  const auto page = [](const char* key) {
    return Said(200, std::string("<ListMultipartUploadsResult><Upload><Key>") + key +
                         "</Key><UploadId>u</UploadId><Initiated>2026-11-01T00:00:00Z</Initiated>"
                         "</Upload></ListMultipartUploadsResult>");
  };
  const auto parts = [](const char* written) {
    return Said(200, std::string("<ListPartsResult><Part><LastModified>") + written +
                         "</LastModified></Part></ListPartsResult>");
  };
  const auto before = std::chrono::system_clock::from_time_t(1'793'491'200);  // 2026-11-01
  const auto day = std::chrono::hours(24);
  sender.Next(page("p/a"));
  EXPECT_EQ(*store->RemoveLeftovers("", before), 0U) << "it has just begun";
  sender.Next(page("p/a"));
  sender.Next(parts("2026-11-03T00:00:00Z"));
  EXPECT_EQ(*store->RemoveLeftovers("", before + day), 0U) << "it goes on";
  sender.Next(page("p/a"));
  sender.Next(parts("2026-11-01T01:00:00Z"));
  sender.Next(Said(204));
  EXPECT_EQ(*store->RemoveLeftovers("", before + day), 1U);
  EXPECT_EQ(sender.sent().back().method, "DELETE");
  sender.Next(page("of-others/a"));
  EXPECT_EQ(*store->RemoveLeftovers("", before + day), 0U);
}

}  // namespace
}  // namespace unreft::durable
